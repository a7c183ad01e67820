#include "fiber.h"

#include <stdlib.h>
#include <sys/mman.h>

#if defined(__x86_64__)
asm(R"(
.text
.globl wick_sim_switch
.hidden wick_sim_switch
.type wick_sim_switch, @function
wick_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size wick_sim_switch, .-wick_sim_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl wick_sim_switch
.hidden wick_sim_switch
.type wick_sim_switch, %function
wick_sim_switch:
  stp x19, x20, [sp, #-160]!
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x19, x20, [sp], #160
  ret
.size wick_sim_switch, .-wick_sim_switch
)");
#else
#error "the simulator's context switch is written for x86-64 and aarch64"
#endif

namespace sim {

static char* stacks;
static constexpr size_t stackCount = 1024;
static constexpr size_t guardBytes = 64 * 1024;  // a multiple of every page size in use

static void mapStacks() {
  size_t bytes = stackCount * stackBytes;
  void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) abort();
  stacks = static_cast<char*>(region);
}

char* stackAt(size_t index) {
  if (!stacks) mapStacks();
  static size_t guarded;
  for (; guarded <= index; guarded++) mprotect(stacks + guarded * stackBytes, guardBytes, PROT_NONE);
  return stacks + index * stackBytes;
}

Stacks allStacks() {
  if (!stacks) mapStacks();
  return {reinterpret_cast<uintptr_t>(stacks), stackCount * stackBytes};
}
bool onStacks(uintptr_t address) { return address - reinterpret_cast<uintptr_t>(stacks) < stackCount * stackBytes; }

void* prepareStack(char* stack, void (*entry)()) {
  // Staggered: tops at equal offsets would all compete for the same few sets of the cache.
  size_t stagger = reinterpret_cast<uintptr_t>(stack) / stackBytes % 64 * 320;
  auto top = reinterpret_cast<uintptr_t*>(stack + stackBytes - stagger);
#if defined(__x86_64__)
  // [r15 r14 r13 r12 rbx rbp entry 0]: entry() starts with the stack aligned as after a call
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(entry);
  top -= 6;
#else
  top -= 20;
  top[11] = reinterpret_cast<uintptr_t>(entry);  // x30
#endif
  return top;
}

}  // namespace sim
