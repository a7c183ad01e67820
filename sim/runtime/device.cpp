// Two devices: ordinal 0 looks like an RDNA 3 card (wave 32), ordinal 1 like a CDNA 2 one (wave 64), or like cards of the
// architecture and the size that are asked for.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "runtime.h"

namespace sim {

static Device devices[] = {
    {0, 32, "Wick simulator, wave 32", "gfx1100", 11, 0, 48, 2500000, 1250000, 384, 6 << 20, 0},
    {1, 64, "Wick simulator, wave 64", "gfx90a:sramecc+:xnack-", 9, 0, 104, 1700000, 1600000, 4096, 8 << 20, 0},
};
static thread_local int current = 0;

Device& device(int ordinal) { return devices[ordinal]; }
int currentDevice() { return current; }

int deviceCount() {
  const char* count = getenv("WICK_SIM_DEVICES");
  return count ? std::clamp(atoi(count), 0, 2) : 2;
}

static size_t numberOf(const char* variable, size_t otherwise) {
  const char* number = getenv(variable);
  return number ? strtoull(number, nullptr, 10) : otherwise;
}

/** The architecture that was asked for, on the device that has its waves. */
static const char* archOf(const Device& d) {
  const char* asked = getenv("WICK_SIM_ARCH");
  if (!asked || !*asked) return d.arch;
  bool has64 = !strncmp(asked, "gfx9", 4);
  return has64 == (d.wave == 64) ? asked : d.arch;
}
static size_t unitsOf(const Device& d) { return std::max<size_t>(numberOf("WICK_SIM_UNITS", size_t(d.units)), 1); }

/** Bytes of memory on each device. */
size_t memoryLimit() { return numberOf("WICK_SIM_MEMORY", size_t(2) << 30); }
size_t hostLimit() { return numberOf("WICK_SIM_HOST_MEMORY", size_t(2) << 30); }

static const char* integratedAs() {
  const char* value = getenv("WICK_SIM_INTEGRATED");
  return value ? value : "0";
}
bool mallocTakesHost() { return !strcmp(integratedAs(), "gtt"); }
bool integrated() { return mallocTakesHost() || !strcmp(integratedAs(), "1"); }

/** What the driver takes for the device's memory. */
static size_t totalMemory() { return mallocTakesHost() ? hostLimit() : memoryLimit(); }

hipError_t requireDevice() {
  if (deviceCount() > current) return hipSuccess;
  return fail(hipErrorInvalidDevice, "there is no device %d (WICK_SIM_DEVICES leaves %d)", current, deviceCount());
}

static hipError_t checkOrdinal(int ordinal) {
  if (ordinal >= 0 && ordinal < deviceCount()) return hipSuccess;
  return fail(hipErrorInvalidDevice, "device ordinal %d, but there are %d devices", ordinal, deviceCount());
}

/** A property: its hipDeviceAttribute_t, its offsets in hipDeviceProp_tR0600 and in the older struct (-1: none). */
struct Property {
  int attribute, offset600, offset0, bytes;
  size_t (*value)(const Device&);
};
static const Property properties[] = {
    {5, 348, 308, 4, [](const Device& d) { return size_t(d.clock); }},
    {8, 576, 360, 4, [](const Device&) { return size_t(1); }},
    {16, 396, 652, 4, [](const Device&) { return size_t(integrated()); }},
    {19, 616, 340, 4, [](const Device& d) { return size_t(d.l2); }},
    {23, 360, 328, 4, [](const Device& d) { return size_t(d.major); }},
    {26, 324, 284, 4, [](const Device&) { return size_t(maxThreads); }},
    {27, 328, 288, 4, [](const Device&) { return size_t(maxThreads); }},
    {28, 332, 292, 4, [](const Device&) { return size_t(maxThreads); }},
    {29, 336, 296, 4, [](const Device&) { return size_t(0x7fffffff); }},
    {30, 340, 300, 4, [](const Device&) { return size_t(65536); }},
    {31, 344, 304, 4, [](const Device&) { return size_t(65536); }},
    {56, 320, 280, 4, [](const Device&) { return size_t(maxThreads); }},
    {57, 624, 344, 4, [](const Device&) { return size_t(2048); }},
    {59, 612, 316, 4, [](const Device& d) { return size_t(d.busWidth); }},
    {60, 608, 312, 4, [](const Device& d) { return size_t(d.memoryClock); }},
    {61, 364, 332, 4, [](const Device& d) { return size_t(d.minor); }},
    {63, 388, 336, 4, unitsOf},
    {71, 304, 272, 4, [](const Device&) { return size_t(65536); }},
    {74, 296, 264, 8, [](const Device&) { return maxShared; }},
    {75, -1, -1, 8, [](const Device&) { return maxShared; }},
    {76, 640, -1, 8, [](const Device&) { return maxShared; }},
    {84, 288, 256, 8, [](const Device&) { return totalMemory(); }},
    {87, 308, 276, 4, [](const Device& d) { return size_t(d.wave); }},
    {10002, -1, -1, 8, [](const Device&) { return maxShared; }},
    {10015, -1, -1, 4, unitsOf},
};
static constexpr size_t propertyBytes600 = 1472, propertyBytes0 = 792, archOffset600 = 1160, archOffset0 = 396;

static hipError_t fillProperties(char* out, int ordinal, bool old) {
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  if (!out) return fail(hipErrorInvalidValue, "hipGetDeviceProperties: null result");
  const Device& d = devices[ordinal];
  memset(out, 0, old ? propertyBytes0 : propertyBytes600);
  strcpy(out, d.name);
  snprintf(out + (old ? archOffset0 : archOffset600), 256, "%s", archOf(d));
  for (const Property& p : properties) {
    int offset = old ? p.offset0 : p.offset600;
    size_t value = p.value(d);
    if (offset >= 0) memcpy(out + offset, &value, size_t(p.bytes));
  }
  return hipSuccess;
}

}  // namespace sim

using namespace sim;

SIM_API hipError_t hipInit(unsigned flags) {
  if (flags) return fail(hipErrorInvalidValue, "hipInit: flags must be 0");
  return requireDevice();
}
SIM_API hipError_t hipDriverGetVersion(int* version) {
  if (!version) return fail(hipErrorInvalidValue, "hipDriverGetVersion: null result");
  *version = 60400000;  // major · 10⁷ + minor · 10⁵ + patch
  return hipSuccess;
}
SIM_API hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

SIM_API hipError_t hipGetDeviceCount(int* count) {
  if (!count) return fail(hipErrorInvalidValue, "hipGetDeviceCount: null result");
  *count = deviceCount();
  return *count ? hipSuccess : fail(hipErrorNoDevice, "WICK_SIM_DEVICES=0: no devices");
}
SIM_API hipError_t hipDeviceGet(hipDevice_t* out, int ordinal) {
  if (!out) return fail(hipErrorInvalidValue, "hipDeviceGet: null result");
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  *out = ordinal;
  return hipSuccess;
}
SIM_API hipError_t hipDeviceGetName(char* name, int length, hipDevice_t ordinal) {
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  if (!name || length <= 0) return fail(hipErrorInvalidValue, "hipDeviceGetName: no room for the name");
  strncpy(name, devices[ordinal].name, size_t(length));
  name[length - 1] = 0;
  return hipSuccess;
}
SIM_API hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t ordinal) {
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  if (!bytes) return fail(hipErrorInvalidValue, "hipDeviceTotalMem: null result");
  *bytes = totalMemory();
  return hipSuccess;
}
SIM_API hipError_t hipDeviceGetPCIBusId(char* id, int length, int ordinal) {
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  if (!id || length < 13) return fail(hipErrorInvalidValue, "hipDeviceGetPCIBusId: the id takes 13 bytes");
  snprintf(id, size_t(length), "0000:%02x:00.0", ordinal);
  return hipSuccess;
}
/** The kernel's figures of a card, as in sysfs: total and used bytes of its own memory, then of the host's. */
SIM_API int wickSimCardMemory(size_t* figures, const char* id) {
  Lock lock;
  unsigned ordinal = 0;
  if (sscanf(id, "0000:%02x:00.0", &ordinal) != 1 || int(ordinal) >= deviceCount()) return 1;
  const size_t used = mallocTakesHost() ? 0 : devices[ordinal].used;
  const size_t all[] = {memoryLimit(), used, hostLimit(), hostUsed()};
  memcpy(figures, all, sizeof all);
  return 0;
}
SIM_API hipError_t hipDeviceGetAttribute(int* out, int attribute, int ordinal) {
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  if (!out) return fail(hipErrorInvalidValue, "hipDeviceGetAttribute: null result");
  for (const Property& p : properties)
    if (p.attribute == attribute) {
      *out = int(std::min<size_t>(p.value(devices[ordinal]), 0x7fffffff));
      return hipSuccess;
    }
  return fail(hipErrorInvalidValue, "hipDeviceGetAttribute: attribute %d is not simulated", attribute);
}
SIM_API hipError_t hipGetDevicePropertiesR0600(void* out, int ordinal) {
  return fillProperties(static_cast<char*>(out), ordinal, false);
}
// The unversioned symbol keeps the struct of ROCm 5.
SIM_API hipError_t hipGetDeviceProperties(void* out, int ordinal) {
  return fillProperties(static_cast<char*>(out), ordinal, true);
}
// Devices reach each other's memory unless WICK_SIM_PEER=0 says otherwise.
SIM_API hipError_t hipDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  if (!can) return fail(hipErrorInvalidValue, "hipDeviceCanAccessPeer: null result");
  for (int each : {ordinal, peer})
    if (hipError_t code = checkOrdinal(each)) return code;
  const char* peers = getenv("WICK_SIM_PEER");
  *can = ordinal != peer && !(peers && !strcmp(peers, "0"));
  return hipSuccess;
}
SIM_API hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  Lock lock;
  static bool enabled[2][2];
  int can = 0;
  if (hipError_t code = hipDeviceCanAccessPeer(&can, current, peer)) return code;
  if (flags) return fail(hipErrorInvalidValue, "hipDeviceEnablePeerAccess: flags must be 0");
  if (!can) return fail(hipErrorInvalidDevice, "hipDeviceEnablePeerAccess: device %d does not reach %d", current, peer);
  if (enabled[current][peer]) return hipErrorPeerAccessAlreadyEnabled;
  enabled[current][peer] = true;
  return hipSuccess;
}
SIM_API hipError_t hipSetDevice(int ordinal) {
  if (hipError_t code = checkOrdinal(ordinal)) return code;
  current = ordinal;
  return hipSuccess;
}
SIM_API hipError_t hipGetDevice(int* ordinal) {
  if (!ordinal) return fail(hipErrorInvalidValue, "hipGetDevice: null result");
  if (hipError_t code = requireDevice()) return code;
  *ordinal = current;
  return hipSuccess;
}
