// Turns a hardware fault (bad address, division by zero, trap) into a return value instead of the process's end.
#pragma once
#include <setjmp.h>
#include <stdint.h>

namespace sim {

struct Fault {
  int signal;
  uintptr_t address;
};

/** Handlers and an alternate stack for this thread, for as long as it lives. Nests. */
struct FaultGuard {
  explicit FaultGuard(jmp_buf* target);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  jmp_buf* outer;
};
/** The fault that made the last guard's setjmp return nonzero. */
const Fault& lastFault();

/** Runs work; false when it faulted. The work must own nothing that needs a destructor. */
template <class F>
bool guarded(F work) {
  jmp_buf target;
  FaultGuard guard(&target);
  if (_setjmp(target)) return false;
  work();
  return true;
}

}  // namespace sim
