// Runs a launch: clusters, usually of one block, one after another, a fiber per thread. Threads of a wave run up to their next
// shuffle together, waves up to their next barrier, blocks of a cluster by turns. The wave-64 device takes blocks and waves last
// to first, so that code which depends on an order gives different results on the two devices.
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "guard.h"
#include "run.h"

namespace sim {

Run run;
static std::vector<int> freeStacks;

/** The cluster's first block: those of one follow each other. */
static unsigned firstBlock() { return run.state->block[0] / run.blocks * run.blocks; }

static void formatProblem(int thread, const char* format, va_list list) {
  char what[320];
  vsnprintf(what, sizeof what, format, list);
  const SimState& s = *run.state;
  const SimKernel& kernel = *run.launch->function->kernel;
  const unsigned x = thread >= 0 ? firstBlock() + unsigned(thread) / run.count : s.block[0];
  int written = snprintf(run.problem, sizeof run.problem, "kernel \"%s\", block (%u,%u,%u)", kernel.name, x,
                         s.block[1], s.block[2]);
  const uint32_t* id = thread >= 0 ? run.threads[thread].id : nullptr;
  if (id)
    written += snprintf(run.problem + written, sizeof run.problem - size_t(written), ", thread (%u,%u,%u)", id[0], id[1],
                        id[2]);
  snprintf(run.problem + written, sizeof run.problem - size_t(written), ": %s", what);
}

void fault(int thread, const char* format, ...) {
  va_list list;
  va_start(list, format);
  formatProblem(thread, format, list);
  va_end(list);
  _longjmp(run.target, 2);
}

static void threadMain() {
  run.launch->function->kernel->run(run.launch->params.data());
  Thread& self = run.threads[run.current];
  self.state = State::Done;
  void* unused;
  wick_sim_switch(&unused, run.scheduler);
  __builtin_unreachable();
}

static double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

void checkTime() {
  run.ticks = 0;
  if (seconds() > run.deadline) fault(run.current, "the launch takes longer than WICK_SIM_TIMEOUT allows");
}

static double timeout() {
  const char* given = getenv("WICK_SIM_TIMEOUT");
  return given ? atof(given) : 300;
}

static void resume(unsigned index) {
  tick();
  Thread& t = run.threads[index];
  if (t.state == State::Fresh) {
    t.stack = freeStacks.back();
    freeStacks.pop_back();
    t.context = prepareStack(stackAt(size_t(t.stack)), threadMain);
  }
  t.state = State::Ready;
  memcpy(run.state->thread, t.id, sizeof t.id);
  const unsigned rank = index / run.count;
  run.state->lane = (index - rank * run.count) % warp;
  run.state->block[0] = firstBlock() + rank;
  run.state->rank = rank;
  run.current = int(index);
  wick_sim_switch(&run.scheduler, t.context);
  checkSuspect();
  run.current = -1;
  if (t.state == State::Done) freeStacks.push_back(t.stack);
}

/** Called on a fiber: parks it until the scheduler has what it waits for. */
static Thread& wait(State state, const char* file, int line) {
  Thread& self = run.threads[run.current];
  self.state = state;
  self.file = file;
  self.line = line;
  wick_sim_switch(&self.context, run.scheduler);
  return self;
}

static void barrier(const char* file, int line) { wait(State::Barrier, file, line); }

static void shuffle(void* value, size_t bytes, int source, const char* file, int line) {
  Thread& self = run.threads[run.current];
  memcpy(self.value, value, bytes);
  self.bytes = bytes;
  self.source = source;
  memcpy(value, wait(State::Shuffle, file, line).value, bytes);
}

static void wave(int orders, const char* file, int line) {
  run.threads[run.current].orders = orders != 0;
  wait(State::Wave, file, line);
}

static uint32_t ballot(int predicate, const char* file, int line) {
  run.threads[run.current].votes = predicate != 0;
  return wait(State::Ballot, file, line).votes;
}

static void clusterBarrier(const char* file, int line) { wait(State::Cluster, file, line); }

/** Of a signal in some block's shared memory: bytes that it waits for, and that have come. */
struct Count {
  const void* signal;
  size_t expected, come;
};
static std::vector<Count> counts;
static Count& countOf(const void* signal) {
  for (Count& count : counts)
    if (count.signal == signal) return count;
  return counts.emplace_back(Count{signal, 0, 0});
}
static bool isUp(const void* signal) {
  const Count& count = countOf(signal);
  return count.expected > 0 && count.come == count.expected;
}
static void expect(const void* signal, size_t bytes) { countOf(signal).expected += bytes; }
static void send(void* to, const void* value, size_t bytes, const void* signal) {
  noteSent(to, bytes);
  memcpy(to, value, bytes);
  countOf(signal).come += bytes;
}
static void await(const void* signal, const char* file, int line) {
  run.threads[run.current].signal = signal;
  wait(State::Signal, file, line).heard = true;
}

/** A signal that is up again and again, and what comes before it then is: what those who arrived had done, and its copies. */
struct Turns {
  const void* at;
  unsigned arrivals, come, ups;
  int64_t missing;  // bytes
  uint32_t arrived[maxClocks], up[maxClocks];
};
static Turns turns[maxSignals];
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  unsigned signal;
};
static std::vector<Copy> copies;

static Turns& turnsOf(const void* signal) {
  for (unsigned i = 0; i < run.signals; i++)
    if (turns[i].at == signal) return turns[i];
  fault(run.current, "a signal that was not made");
}

static void completeTurn(Turns& t) {
  if (t.come < t.arrivals || t.missing) return;
  memcpy(t.up, t.arrived, sizeof t.up);
  t.up[maxWarps + (&t - turns)] = nextEpoch();
  memset(t.arrived, 0, sizeof t.arrived);
  t.come = 0;
  t.ups++;
}

static void make(const void* signal, uint32_t arrivals) {
  unsigned i = 0;
  while (i < run.signals && turns[i].at != signal) i++;
  if (i == maxSignals) fault(run.current, "more signals than the simulator has room for");
  if (i == run.signals) {
    run.signals++;
    for (auto& seen : run.seen) seen[maxWarps + i] = 0;
  }
  turns[i] = {signal, arrivals, 0, 0, 0, {}, {}};
}

static void arrive(const void* signal, size_t bytes) {
  Turns& t = turnsOf(signal);
  if (t.come == t.arrivals) fault(run.current, "arrives at a signal more often than it was made for");
  const uint32_t* const seen = run.seen[warpOf(unsigned(run.current))];
  for (unsigned v = 0; v < maxClocks; v++) t.arrived[v] = std::max(t.arrived[v], seen[v]);
  t.come++;
  t.missing += int64_t(bytes);
  completeTurn(t);
}

static void copy(void* to, const void* from, size_t bytes, const void* signal) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16)
    fault(run.current, "a copy of %zu bytes from %p to %p, which are no multiples of 16", bytes, from, to);
  Turns& t = turnsOf(signal);
  if (!bytes) return;
  if (from) checkSource(from, bytes);
  noteCopied(to, bytes, unsigned(&t - turns));
  // Not what was there, nor what will be.
  memset(to, 0xA5, bytes);
  copies.push_back({to, from, bytes, unsigned(&t - turns)});
}

/** What is on its way comes when nobody goes on by a signal that is up. */
static bool deliver() {
  const bool any = !copies.empty();
  for (const Copy& c : copies) {
    if (c.from) memcpy(c.to, c.from, c.bytes);
    else memset(c.to, 0, c.bytes);
    Turns& t = turns[c.signal];
    t.missing -= int64_t(c.bytes);
    completeTurn(t);
  }
  copies.clear();
  return any;
}

static bool hasPhase(const void* signal, unsigned phase) { return (turnsOf(signal).ups & 1) != phase; }

static void awaitPhase(const void* signal, uint32_t phase, const char* file, int line) {
  Thread& self = run.threads[run.current];
  self.signal = signal;
  self.phase = phase & 1;
  while (!hasPhase(signal, self.phase)) wait(State::Phase, file, line);
  const Turns& t = turnsOf(signal);
  uint32_t* const seen = run.seen[warpOf(unsigned(run.current))];
  for (unsigned v = 0; v < maxClocks; v++) seen[v] = std::max(seen[v], t.up[v]);
}

static void crew(uint32_t threads, const char* file, int line) {
  if (threads % warp || threads > run.count) fault(run.current, "a barrier of %u threads of %u", threads, run.count);
  run.threads[run.current].crew = threads;
  wait(State::Crew, file, line);
}

static void trap(const char* why) { fault(run.current, "%s", why); }

void bind(SimState& state) {
  state.stacks = allStacks().low;
  state.stackBytes = allStacks().bytes;
  state.quiet = quietAccesses;
  state.placeShared = placeShared;
  state.access = checkAccess;
  state.barrier = barrier;
  state.wave = wave;
  state.shuffle = shuffle;
  state.ballot = ballot;
  state.clusterBarrier = clusterBarrier;
  state.expect = expect;
  state.send = send;
  state.await = await;
  state.make = make;
  state.arrive = arrive;
  state.copy = copy;
  state.awaitPhase = awaitPhase;
  state.crew = crew;
  state.blockBytes = arenaBytes;
  state.trap = trap;
}

static bool sameSite(const Thread& a, const Thread& b) {
  return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

static void requireTogether(unsigned first, unsigned index) {
  const Thread &a = run.threads[first], &b = run.threads[index];
  if (b.state == State::Done || (a.state == b.state && sameSite(a, b) && (a.state == State::Ballot || a.bytes == b.bytes)))
    return;
  fault(int(index), "divergent shuffle: thread (%u,%u,%u) of the same warp waits at %s:%d, this one at %s:%d", a.id[0],
        a.id[1], a.id[2], a.file, a.line, b.file, b.line);
}

/** Gives the threads [low, high) of one warp their values; false when none of them waits for any. */
static bool exchange(unsigned low, unsigned high) {
  unsigned first = low;
  while (first < high && run.threads[first].state != State::Shuffle && run.threads[first].state != State::Ballot) first++;
  if (first == high) return false;
  State kind = run.threads[first].state;
  unsigned char values[warp][16];
  uint32_t votes = 0;
  for (unsigned i = low; i < high; i++) {
    Thread& t = run.threads[i];
    requireTogether(first, i);
    if (t.state == State::Done) continue;
    if (kind == State::Ballot) votes |= t.votes << (i - low);
    else memcpy(values[i - low], t.value, 16);
  }
  for (unsigned i = low; i < high; i++) {
    Thread& t = run.threads[i];
    if (t.state == State::Done) continue;
    t.votes = votes;
    t.state = State::Ready;
    if (kind == State::Ballot) continue;
    unsigned source = low + unsigned(t.source);
    if (source >= high || run.threads[source].state == State::Done)
      fault(int(i), "shuffle at %s:%d reads lane %d, which %s", t.file, t.line, t.source,
            source >= high ? "the block does not have" : "has exited");
    memcpy(t.value, values[t.source], 16);
  }
  return true;
}

/** Whether the threads [low, high) of a wave go on, as all that have not ended wait at one meeting. */
static bool passWave(unsigned low, unsigned high) {
  int first = -1;
  for (unsigned i = low; i < high; i++) {
    const Thread& t = run.threads[i];
    if (t.state == State::Done) continue;
    if (t.state != State::Wave || (first >= 0 && !sameSite(run.threads[first], t))) return false;
    if (first < 0) first = int(i);
  }
  if (first < 0) return false;
  if (run.threads[first].orders) {
    const unsigned rank = low / run.count, from = rank * run.warps + (low - rank * run.count) / warp;
    meetWarps(from, from + (high - low + warp - 1) / warp);
  }
  for (unsigned i = low; i < high; i++)
    if (run.threads[i].state == State::Wave) run.threads[i].state = State::Ready;
  return true;
}

static void runWave(unsigned low, unsigned high) {
  for (bool again = true; again;) {
    for (unsigned i = low; i < high; i++)
      if (run.threads[i].state == State::Fresh || run.threads[i].state == State::Ready) resume(i);
    again = false;
    for (unsigned w = low; w < high; w += warp) again |= exchange(w, std::min(w + warp, high));
    again |= passWave(low, high);
  }
}

static bool waitsForOthers(const Thread& t) {
  return t.state == State::Cluster || t.state == State::Signal || t.state == State::Phase || t.state == State::Crew;
}

/** Whether the threads of a block go on: all that have not ended wait at one barrier. Who waits for other blocks is waited for. */
static bool passBarrier(unsigned block) {
  Thread* const threads = run.threads + block * run.count;
  const Thread& first = threads[0];
  for (unsigned i = 0; i < run.count; i++)
    if (waitsForOthers(threads[i])) return false;
  for (unsigned i = 0; i < run.count; i++)
    if (threads[i].state == State::Wave)
      fault(int(block * run.count + i), "divergent wave: it waits for the others of its wave at %s:%d, where not all come",
            threads[i].file, threads[i].line);
  for (unsigned i = 1; i < run.count; i++) {
    const Thread& t = threads[i];
    bool waits = t.state == State::Barrier;
    if (waits != (first.state == State::Barrier)) {
      const Thread& waiting = waits ? t : first;
      fault(int(block * run.count + (waits ? 0 : i)),
            "divergent barrier: it has exited while thread (%u,%u,%u) waits at %s:%d", waiting.id[0], waiting.id[1],
            waiting.id[2], waiting.file, waiting.line);
    }
    // Waves may come from different places, which devices do not tell apart; lanes of one do not.
    const Thread& lead = threads[i / warp * warp];
    if (waits && !sameSite(lead, t))
      fault(int(block * run.count + i), "divergent barrier: it waits at %s:%d, thread (%u,%u,%u) at %s:%d", t.file, t.line,
            lead.id[0], lead.id[1], lead.id[2], lead.file, lead.line);
  }
  if (first.state == State::Done) return false;
  for (unsigned i = 0; i < run.count; i++) threads[i].state = State::Ready;
  meet(block);
  return true;
}

/** Whether threads go on that wait for a signal, or for the others of their crew. */
static bool passSignals() {
  bool goes = false;
  for (unsigned i = 0; i < run.blocks * run.count; i++) {
    Thread& t = run.threads[i];
    if (t.state != State::Phase || !hasPhase(t.signal, t.phase)) continue;
    t.state = State::Ready;
    goes = true;
  }
  for (unsigned b = 0; b < run.blocks; b++) {
    Thread* const threads = run.threads + b * run.count;
    if (threads[0].state != State::Crew) continue;
    const unsigned members = threads[0].crew;
    bool all = true;
    for (unsigned i = 0; i < members; i++) all &= threads[i].state == State::Crew && threads[i].crew == members;
    if (!all) continue;
    for (unsigned i = 0; i < members; i++) threads[i].state = State::Ready;
    meetWarps(b * run.warps, b * run.warps + members / warp);
    goes = true;
  }
  return goes || deliver();
}

/** Whether threads go on that wait for other blocks: those whose signal is up, and all when all have come or ended. */
static bool passCluster() {
  const unsigned all = run.blocks * run.count;
  bool goes = false, together = false;
  for (unsigned i = 0; i < all; i++) {
    Thread& t = run.threads[i];
    if (t.state != State::Signal || !isUp(t.signal)) continue;
    t.state = State::Ready;
    goes = true;
  }
  for (unsigned i = 0; i < all; i++) {
    const State state = run.threads[i].state;
    if (state != State::Cluster && state != State::Done) return goes;
    together |= state == State::Cluster;
  }
  if (!together) return goes;
  for (unsigned i = 0; i < all; i++)
    if (run.threads[i].state == State::Cluster) run.threads[i].state = State::Ready;
  meetAll(false);
  return true;
}

static const char* waitedFor(State state) {
  switch (state) {
    case State::Signal:
    case State::Phase:
      return "a signal";
    case State::Crew:
      return "its crew";
    case State::Wave:
      return "its wave";
    case State::Cluster:
      return "its cluster";
    default:
      return "its block";
  }
}

/** No thread goes on: that is the end, or some wait for what never comes. */
static void requireEnd() {
  for (unsigned i = 0; i < run.blocks * run.count; i++) {
    const Thread& t = run.threads[i];
    if (t.state == State::Done) continue;
    fault(int(i), "it waits for %s at %s:%d, where others never come", waitedFor(t.state), t.file, t.line);
  }
}

static void runCluster(unsigned wave, bool reverse) {
  for (unsigned i = 0; i < run.blocks * run.count; i++) {
    run.threads[i].state = State::Fresh;
    run.threads[i].heard = false;
  }
  counts.clear();
  copies.clear();
  run.signals = 0;
  meetAll(true);
  const unsigned waves = (run.count + wave - 1) / wave;
  bool goes = true;
  while (goes) {
    goes = false;
    for (unsigned b = 0; b < run.blocks; b++) {
      const unsigned block = reverse ? run.blocks - 1 - b : b, end = (block + 1) * run.count;
      for (unsigned w = 0; w < waves; w++) {
        const unsigned low = block * run.count + (reverse ? waves - 1 - w : w) * wave;
        runWave(low, std::min(low + wave, end));
      }
      goes |= passBarrier(block);
    }
    goes |= passSignals();
    if (run.blocks > 1) goes |= passCluster();
  }
  requireEnd();
}

static void prepare(const Launch& launch) {
  run.launch = &launch;
  run.state = launch.module->state;
  run.count = launch.block[0] * launch.block[1] * launch.block[2];
  run.blocks = launch.function->kernel->bounds.cluster;
  run.warps = (run.count + warp - 1) / warp;
  run.current = -1;
  run.ticks = 0;
  run.deadline = seconds() + timeout();
  run.state->launch = ++run.serial;
  for (int d = 0; d < 3; d++) {
    run.state->blockDim[d] = launch.block[d];
    run.state->gridDim[d] = launch.grid[d];
  }
  for (unsigned i = 0; i < run.blocks * run.count; i++) {
    const unsigned t = i % run.count;
    uint32_t* id = run.threads[i].id;
    id[0] = t % launch.block[0];
    id[1] = t / launch.block[0] % launch.block[1];
    id[2] = t / launch.block[0] / launch.block[1];
  }
  freeStacks.clear();
  for (int i = int(run.blocks * run.count); i-- > 0;) freeStacks.push_back(i);
  resetShared(launch.dynamicShared);
  run.state->dynamicShared = dynamicShared();
}

static void describeSignal() {
  const Fault& f = lastFault();
  char why[96];
  if (f.signal == SIGFPE) snprintf(why, sizeof why, "divides an integer by zero");
  else if (f.signal == SIGILL) snprintf(why, sizeof why, "executes a trap");
  else if (onStacks(f.address)) snprintf(why, sizeof why, "overflows its stack");
  else snprintf(why, sizeof why, "touches %#zx, which is not mapped", size_t(f.address));
  if (!_setjmp(run.target)) fault(run.current, "%s", why);
}

hipError_t execute(const Launch& launch) {
  const SimKernel& kernel = *launch.function->kernel;
  noteKernel(kernel.name);
  prepare(launch);
  unsigned wave = unsigned(device(launch.device).wave);
  bool reverse = wave == 64;
  uint64_t blocks = uint64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  FaultGuard guard(&run.target);
  int outcome = _setjmp(run.target);
  if (outcome == 0) {
    for (uint64_t b = 0; b < blocks; b += run.blocks) {
      uint64_t index = reverse ? blocks - run.blocks - b : b;
      run.state->block[0] = uint32_t(index % launch.grid[0]);
      run.state->block[1] = uint32_t(index / launch.grid[0] % launch.grid[1]);
      run.state->block[2] = uint32_t(index / launch.grid[0] / launch.grid[1]);
      runCluster(wave, reverse);
    }
    launch.function->staticShared = std::max(launch.function->staticShared, staticSharedBytes());
    return hipSuccess;
  }
  if (outcome == 1) describeSignal();
  run.current = -1;
  device(launch.device).faulted = true;
  return fail(hipErrorLaunchFailure, "%s", run.problem);
}

}  // namespace sim
