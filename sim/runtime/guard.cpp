#include "guard.h"

#include <signal.h>
#include <stdlib.h>

namespace sim {

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction previous[4];
static stack_t previousStack;
alignas(64) static char handlerStack[64 * 1024];
// Only the thread inside a guard sees a target; the runtime's lock admits one such thread at a time.
static thread_local jmp_buf* current = nullptr;
static Fault fault;

const Fault& lastFault() { return fault; }

static void handle(int signal, siginfo_t* info, void* context) {
  if (current) {
    fault = {signal, reinterpret_cast<uintptr_t>(info->si_addr)};
    _longjmp(*current, 1);
  }
  // Another thread's fault: what was installed before decides.
  for (int i = 0; i < 4; i++)
    if (signals[i] == signal) {
      if (previous[i].sa_flags & SA_SIGINFO) return previous[i].sa_sigaction(signal, info, context);
      if (previous[i].sa_handler != SIG_DFL && previous[i].sa_handler != SIG_IGN) return previous[i].sa_handler(signal);
    }
  ::signal(signal, SIG_DFL);  // returning repeats the instruction, now fatally
}

FaultGuard::FaultGuard(jmp_buf* target) : outer(current) {
  current = target;
  if (outer) return;
  stack_t stack = {};
  stack.ss_sp = handlerStack;
  stack.ss_size = sizeof handlerStack;
  sigaltstack(&stack, &previousStack);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &action, &previous[i]);
}

FaultGuard::~FaultGuard() {
  current = outer;
  if (outer) return;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &previous[i], nullptr);
  sigaltstack(&previousStack, nullptr);
}

}  // namespace sim
