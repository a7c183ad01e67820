// Fibers: one per GPU thread, switched by hand because a system call per switch would dominate everything.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace sim {

constexpr size_t stackBytes = 256 * 1024;

/** Saves the caller's registers on its stack, stores the stack pointer in *save, continues at `to`. */
extern "C" void wick_sim_switch(void** save, void* to);

/** The stack pointer of a fresh context that starts by calling entry() on the given stack. */
void* prepareStack(char* stack, void (*entry)());

/** Stack number i of the pool; all lie in one mapping, each above an inaccessible page. */
char* stackAt(size_t index);
struct Stacks {
  uintptr_t low;
  size_t bytes;
};
/** Where all stacks are. */
Stacks allStacks();
bool onStacks(uintptr_t address);

}  // namespace sim
