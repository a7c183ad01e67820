// Ids that name rows. The largest value of the id type means "nothing"; any other id out of range is noted and treated so, too.
#ifndef WICK_IDS_H
#define WICK_IDS_H
#include "gpu.h"

namespace gpu {
// The first bad id of a launch: error[0] = 1, then the id and its position. Nothing else happens, so that the device
// stays usable; the host looks at the flag when it next reads and throws.
GPU_FN void bad_index(u64* error, i64 id, size_t position) {
  if (error && atomic_cas((unsigned long long*)error, 0, 1) == 0) {
    error[1] = (u64)id;
    error[2] = (u64)position;
  }
}

template <class I> GPU_FN i64 nothing() { return (i64)Limits<I>::highest(); }

// The id as an index below `size`, or −1.
template <class I> GPU_FN i64 resolve(I raw, size_t size, size_t position, u64* error) {
  const i64 id = (i64)raw;
  if ((u64)id < (u64)size) return raw == Limits<I>::highest() ? -1 : id;
  if (id != nothing<I>()) bad_index(error, id, position);
  return -1;
}

}  // namespace gpu

#endif  // WICK_IDS_H
