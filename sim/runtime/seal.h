// A checksum in a field of the ELF header that these machines leave zero, so that a damaged code object is noticed.
#pragma once
#include <elf.h>
#include <stdint.h>
#include <string.h>

#include <vector>

namespace sim {

inline uint32_t checksum(const char* bytes, size_t count) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < count; i++) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 16777619u;
  return hash ? hash : 1;
}

inline void seal(std::vector<char>& image) {
  auto* header = reinterpret_cast<Elf64_Ehdr*>(image.data());
  header->e_flags = 0;
  header->e_flags = checksum(image.data(), image.size());
}

/** Copies the code object that starts at `start`; says what is wrong with it, or null. */
inline const char* unseal(const void* start, std::vector<char>& image) {
  Elf64_Ehdr header;
  memcpy(&header, start, sizeof header);
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN)
    return "the image is no code object";
#if defined(__x86_64__)
  if (header.e_machine != EM_X86_64) return "the code object is for another machine";
#else
  if (header.e_machine != EM_AARCH64) return "the code object is for another machine";
#endif
  size_t size = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
  if (header.e_shoff < sizeof header || size > size_t(1) << 30) return "the code object's header is damaged";
  image.resize(size);
  memcpy(image.data(), start, size);
  auto* copied = reinterpret_cast<Elf64_Ehdr*>(image.data());
  copied->e_flags = 0;
  if (header.e_flags && header.e_flags != checksum(image.data(), size)) return "the code object is damaged";
  return nullptr;
}

}  // namespace sim
