// Modules: a code object is the shared object the host compiler made. hiprtc seals it (seal.h), so a truncated or
// altered one is refused as a driver would refuse it.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard.h"
#include "runtime.h"
#include "seal.h"

namespace sim {

static std::unordered_set<const Module*>& modules() {
  static auto* live = new std::unordered_set<const Module*>;
  return *live;
}
static std::unordered_set<const Function*>& functions() {
  static auto* live = new std::unordered_set<const Function*>;
  return *live;
}
/** The handle's owner: launches hold on to it, too, until they have run. */
static std::vector<std::shared_ptr<Module>>& owners() {
  static auto* all = new std::vector<std::shared_ptr<Module>>;
  return *all;
}

bool alive(const Function* function) { return functions().count(function) != 0; }

Module::~Module() {
  if (library) dlclose(library);
  if (file >= 0) close(file);
}

static bool openImage(Module& module, const std::vector<char>& image, std::string* why) {
  module.file = memfd_create("wick-sim-module", MFD_CLOEXEC);
  if (module.file < 0 || write(module.file, image.data(), image.size()) != ssize_t(image.size())) {
    *why = "the module cannot be written to memory";
    return false;
  }
  // Modules name no libraries (hiprtc.cpp): what they call of this one must be found without that.
  static const void* const mathematics = dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
  if (!mathematics) {
    *why = dlerror();
    return false;
  }
  std::string path = "/proc/self/fd/" + std::to_string(module.file);
  module.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module.library) *why = dlerror();
  return module.library != nullptr;
}

/** The addresses the loader gave the module, so that kernels may read their constant tables. */
static void findRange(Module& module) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* found = static_cast<Module*>(data);
        uintptr_t low = UINTPTR_MAX, high = 0, state = reinterpret_cast<uintptr_t>(found->state);
        for (int i = 0; i < info->dlpi_phnum; i++) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          low = std::min<uintptr_t>(low, info->dlpi_addr + segment.p_vaddr);
          high = std::max<uintptr_t>(high, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
        }
        if (state < low || state >= high) return 0;
        found->low = low;
        found->high = high;
        return 1;
      },
      &module);
}

static LeakReport leakReport{[] {
  if (!modules().empty()) reportLeak(std::to_string(modules().size()) + " modules");
}};

}  // namespace sim

using namespace sim;

SIM_API hipError_t hipModuleLoadData(hipModule_t* out, const void* image) {
  Lock lock;
  if (hipError_t code = requireDevice()) return code;
  if (!out || !image) return fail(hipErrorInvalidValue, "hipModuleLoadData: null argument");
  *out = nullptr;
  static std::vector<char> copy;
  copy.clear();
  const char* wrong = nullptr;
  if (!guarded([&] { wrong = unseal(image, copy); })) wrong = "it ends before its headers say so";
  if (wrong) return fail(hipErrorInvalidImage, "hipModuleLoadData: %s", wrong);
  std::string why;
  auto module = std::make_shared<Module>();
  if (!openImage(*module, copy, &why)) return fail(hipErrorInvalidImage, "hipModuleLoadData: %s", why.c_str());
  module->state = static_cast<SimState*>(dlsym(module->library, "wickSimState"));
  if (!module->state || module->state->abi != SIM_ABI)
    return fail(hipErrorNoBinaryForGpu, "hipModuleLoadData: the module was not built with this sim.h");
  bind(*module->state);
  findRange(*module);
  modules().insert(module.get());
  owners().push_back(module);
  *out = module.get();
  return hipSuccess;
}

SIM_API hipError_t hipModuleUnload(hipModule_t module) {
  Lock lock;
  if (!modules().erase(module)) return fail(hipErrorInvalidHandle, "hipModuleUnload: the module is not alive");
  hipError_t result = drainAll();
  module->loaded = false;
  for (auto& function : module->functions) functions().erase(function.get());
  for (size_t i = 0; i < owners().size(); i++)
    if (owners()[i].get() == module) {
      std::shared_ptr<Module> last = std::move(owners()[i]);
      owners().erase(owners().begin() + long(i));
      break;
    }
  return result;
}

SIM_API hipError_t hipModuleGetFunction(hipFunction_t* out, hipModule_t module, const char* name) {
  Lock lock;
  if (!out || !name) return fail(hipErrorInvalidValue, "hipModuleGetFunction: null argument");
  if (!modules().count(module)) return fail(hipErrorInvalidHandle, "hipModuleGetFunction: the module is not alive");
  *out = nullptr;
  auto* kernel = static_cast<const SimKernel*>(dlsym(module->library, (std::string(name) + "_sim").c_str()));
  if (!kernel || kernel->abi != SIM_ABI)
    return fail(hipErrorNotFound, "hipModuleGetFunction: the module has no kernel \"%s\"", name);
  for (auto& known : module->functions)
    if (known->kernel == kernel) {
      *out = known.get();
      return hipSuccess;
    }
  module->functions.push_back(std::unique_ptr<Function>(new Function{kernel, module, 0}));
  *out = module->functions.back().get();
  functions().insert(*out);
  return hipSuccess;
}

SIM_API hipError_t hipFuncGetAttribute(int* out, hipFunction_attribute attribute, hipFunction_t function) {
  Lock lock;
  if (!out) return fail(hipErrorInvalidValue, "hipFuncGetAttribute: null result");
  if (!alive(function)) return fail(hipErrorInvalidDeviceFunction, "hipFuncGetAttribute: the function is not alive");
  switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *out = int(function->kernel->bounds.threads);
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *out = int(function->staticShared);
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *out = int(function->module->state->maxShared - function->staticShared);
      return hipSuccess;
    default:
      if (unsigned(attribute) >= HIP_FUNC_ATTRIBUTE_MAX)
        return fail(hipErrorInvalidValue, "hipFuncGetAttribute: there is no attribute %d", attribute);
      *out = 0;
      return hipSuccess;
  }
}
