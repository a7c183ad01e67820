#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace sim {

static std::recursive_mutex& mutex() {
  static auto* lock = new std::recursive_mutex;  // outlives every static destructor
  return *lock;
}
Lock::Lock() { mutex().lock(); }
Lock::~Lock() { mutex().unlock(); }

static std::string& message() {
  static auto* text = new std::string;
  return *text;
}
static thread_local hipError_t lastError = hipSuccess;

hipError_t fail(hipError_t code, const char* format, ...) {
  char text[1024];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  message() = text;
  lastError = code;
  return code;
}

bool flag(const char* name) {
  const char* value = getenv(name);
  return value && *value && strcmp(value, "0") != 0;
}

void reportLeak(const std::string& what) { fprintf(stderr, "wick-sim: leaked %s\n", what.c_str()); }

LeakReport::~LeakReport() {
  if (flag("WICK_SIM_LEAKS")) list();
}

}  // namespace sim

using namespace sim;

/** What the simulator found wrong last, in words; valid until the calling thread asks again. */
SIM_API const char* wickSimLastMessage() {
  Lock lock;
  static thread_local std::string copy;
  copy = message();
  return copy.c_str();
}

/** For the libraries beside this one. */
SIM_API void wickSimNote(const char* text) {
  Lock lock;
  message() = text;
}

SIM_API const char* hipGetErrorName(hipError_t code) {
  switch (code) {
#define X(name, value, text) \
  case name:                 \
    return #name;
    HIP_ERRORS(X)
#undef X
  }
  return "hipErrorUnknown";
}

SIM_API const char* hipGetErrorString(hipError_t code) {
  switch (code) {
#define X(name, value, text) \
  case name:                 \
    return text;
    HIP_ERRORS(X)
#undef X
  }
  return "unknown error";
}

// As in ROCm 7: the last error stays until it is asked for, whatever succeeded in between.
SIM_API hipError_t hipGetLastError() {
  hipError_t code = lastError;
  lastError = hipSuccess;
  return code;
}
SIM_API hipError_t hipPeekAtLastError() { return lastError; }
