// hiprtc over the host's C++ compiler: writes the source to a temporary folder, compiles it to a shared object, keeps
// the bytes and the compiler's messages.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>

#include "runtime.h"
#include "seal.h"

extern char** environ;

namespace sim {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

struct Program {
  std::string name, source, log;
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<char> code;
};

static std::unordered_set<const Program*>& programs() {
  static auto* live = new std::unordered_set<const Program*>;
  return *live;
}

struct TemporaryFolder {
  std::string path;
  TemporaryFolder() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "wick-sim-XXXXXX").string();
    if (mkdtemp(pattern.data())) path = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path.empty()) fs::remove_all(path, error);
  }
};

static std::string findCompiler() {
  Arguments names = {"g++", "clang++", "clang++-19", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++-14"};
  if (const char* chosen = getenv("WICK_SIM_CXX")) names = {chosen};
  const char* path = getenv("PATH");
  for (const std::string& name : names) {
    if (name.find('/') != std::string::npos) return access(name.c_str(), X_OK) ? "" : name;
    for (const char* at = path ? path : ""; *at;) {
      size_t length = strcspn(at, ":");
      std::string candidate = std::string(at, length) + "/" + name;
      if (!access(candidate.c_str(), X_OK)) return candidate;
      at += length + (at[length] == ':');
    }
  }
  return "";
}

/** The folder this library was built into; sim.h is in the one above. */
static fs::path buildFolder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(findCompiler), &info)) return ".";
  std::error_code error;
  return fs::canonical(info.dli_fname, error).parent_path();
}

static bool startsWith(const std::string& text, const char* prefix) { return !text.compare(0, strlen(prefix), prefix); }

/** Options of the device compiler that mean something here go to `to`; false for one that no hiprtc takes. */
static bool takeOption(const std::string& option, Arguments& to) {
  for (const char* prefix : {"-D", "-U", "-I", "-std=", "-W"})
    if (startsWith(option, prefix)) return to.push_back(option), true;
  for (const char* prefix : {"--gpu-architecture=", "--offload-arch=", "-O", "-f", "-m", "-g"})
    if (startsWith(option, prefix)) return true;
  return option == "-w";
}

static Arguments command(const std::string& compiler) {
  // A defined floating-point contract and plain symbols; the rest makes a module as sim.h expects it. Compiling takes longer
  // than most launches: -Og takes half the time of -O1, and its code runs at 0.85 of the speed; that of -O0, compiled in 0.7 of
  // the time, at 0.45.
  Arguments line = {compiler,          "-x",       "c++",           "-std=c++17",         "-Og", "-fPIC", "-shared",
                    "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off",
                    "-fno-asynchronous-unwind-tables"};
  bool clang = fs::path(compiler).filename().string().find("clang") != std::string::npos;
  if (!clang) line.push_back("-fno-gnu-unique");
  const char* check = getenv("WICK_SIM_CHECK");
  if (check && !strcmp(check, "0")) return line;
  line.push_back("-fsanitize=thread");
  if (clang) line.insert(line.end(), {"-mllvm", "-tsan-instrument-read-before-write=1"});
  return line;
}

/** Exit status, or -1 when the compiler could not be started; its output goes to the file. */
static int runCompiler(const Arguments& line, const std::string& output) {
  std::vector<char*> argv;
  for (const std::string& word : line) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child;
  int started = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (started) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

template <class Bytes>
static Bytes readFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

static hiprtcResult compile(Program& program, const Arguments& options) {
  program.log.clear();
  program.code.clear();
  std::string compiler = findCompiler();
  if (compiler.empty()) {
    program.log = "no C++ compiler found: install g++ or clang++, or name one in WICK_SIM_CXX\n";
    return HIPRTC_ERROR_INTERNAL_ERROR;
  }
  Arguments line = command(compiler);
  for (const std::string& option : options)
    if (!takeOption(option, line)) {
      program.log = "unknown option: " + option + "\n";
      return HIPRTC_ERROR_INVALID_OPTION;
    }
  TemporaryFolder folder;
  if (folder.path.empty()) {
    program.log = "no temporary folder can be made\n";
    return HIPRTC_ERROR_INTERNAL_ERROR;
  }
  for (const auto& [name, text] : program.headers) {
    fs::path path = fs::path(folder.path) / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string source = folder.path + "/source.hip", result = folder.path + "/code.so", log = folder.path + "/log.txt";
  std::ofstream(source, std::ios::binary) << "#line 1 \"" << program.name << "\"\n" << program.source;
  fs::path build = buildFolder(), sim = build.parent_path();
  // The C library and that of mathematics are those of this process: naming them would take the linker five times as long.
  line.insert(line.end(), {"-I" + folder.path, "-I" + sim.string(), "-I" + (sim.parent_path() / "kernels").string(), source,
                           "-x", "none", (build / "hooks.o").string(), "-o", result, "-Wl,-Bsymbolic", "-nodefaultlibs",
                           "-lgcc"});
  int status = runCompiler(line, log);
  program.log = readFile<std::string>(log);
  if (status) {
    if (status < 0) program.log += "the compiler " + compiler + " could not be run\n";
    return HIPRTC_ERROR_COMPILATION;
  }
  program.code = readFile<std::vector<char>>(result);
  if (program.code.size() < sizeof(Elf64_Ehdr)) return HIPRTC_ERROR_INTERNAL_ERROR;
  seal(program.code);
  return HIPRTC_SUCCESS;
}

/** The headers that this library was built beside (sim/build.mjs). */
extern "C" __attribute__((used, visibility("default"))) const unsigned wickSimHeaders = SIM_HEADERS;

/** AMD's hiprtc holds one lock for the whole of a compilation, and creating a program waits for it. */
static std::mutex& compiling() {
  static auto* lock = new std::mutex;
  return *lock;
}

/** clang runs on the caller's thread and takes this much of its stack, which is more than a small one has. */
static __attribute__((noinline)) void useStack() {
  volatile char taken[256 << 10];
  for (size_t at = sizeof taken; at > 0; at -= 1024) taken[at - 1] = 0;
}

static Program* find(hiprtcProgram program) { return programs().count(program) ? program : nullptr; }

}  // namespace sim

using namespace sim;

SIM_API const char* hiprtcGetErrorString(hiprtcResult result) {
  switch (result) {
#define X(name, value) \
  case name:           \
    return #name;
    HIPRTC_RESULTS(X)
#undef X
  }
  return "Invalid HIPRTC error code";
}
// As AMD's: the same in every release.
SIM_API hiprtcResult hiprtcVersion(int* major, int* minor) {
  if (!major || !minor) return HIPRTC_ERROR_INVALID_INPUT;
  *major = 9;
  *minor = 0;
  return HIPRTC_SUCCESS;
}
SIM_API hiprtcResult hiprtcCreateProgram(hiprtcProgram* out, const char* source, const char* name, int headerCount,
                                         const char* const* headers, const char* const* includeNames) {
  std::lock_guard<std::mutex> whole(compiling());
  Lock lock;
  if (!out || headerCount < 0 || (headerCount && (!headers || !includeNames))) return HIPRTC_ERROR_INVALID_INPUT;
  if (!source) return HIPRTC_ERROR_INVALID_INPUT;
  auto* program = new Program{name ? name : "CompileSource", source, "", {}, {}};
  for (int i = 0; i < headerCount; i++) program->headers.emplace_back(includeNames[i], headers[i]);
  programs().insert(program);
  *out = program;
  return HIPRTC_SUCCESS;
}
SIM_API hiprtcResult hiprtcCompileProgram(hiprtcProgram handle, int count, const char* const* options) {
  Program* program;
  {
    Lock lock;
    program = find(handle);
  }
  if (!program) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (count < 0 || (count && !options)) return HIPRTC_ERROR_INVALID_INPUT;
  // Without the device's lock: compiling takes long, and other threads may use the device meanwhile.
  std::lock_guard<std::mutex> whole(compiling());
  useStack();
  if (const char* slow = getenv("WICK_SIM_COMPILE_MS")) usleep(useconds_t(atoi(slow)) * 1000);
  return compile(*program, Arguments(options, options + count));
}
SIM_API hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram handle, size_t* bytes) {
  Lock lock;
  Program* program = find(handle);
  if (!program) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!bytes) return HIPRTC_ERROR_INVALID_INPUT;
  *bytes = program->log.size() + 1;
  return HIPRTC_SUCCESS;
}
SIM_API hiprtcResult hiprtcGetProgramLog(hiprtcProgram handle, char* out) {
  Lock lock;
  Program* program = find(handle);
  if (!program) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!out) return HIPRTC_ERROR_INVALID_INPUT;
  memcpy(out, program->log.c_str(), program->log.size() + 1);
  return HIPRTC_SUCCESS;
}
SIM_API hiprtcResult hiprtcGetCodeSize(hiprtcProgram handle, size_t* bytes) {
  Lock lock;
  Program* program = find(handle);
  if (!program) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!bytes) return HIPRTC_ERROR_INVALID_INPUT;
  *bytes = program->code.size();
  return HIPRTC_SUCCESS;
}
SIM_API hiprtcResult hiprtcGetCode(hiprtcProgram handle, char* out) {
  Lock lock;
  Program* program = find(handle);
  if (!program) return HIPRTC_ERROR_INVALID_PROGRAM;
  if (!out) return HIPRTC_ERROR_INVALID_INPUT;
  memcpy(out, program->code.data(), program->code.size());
  return HIPRTC_SUCCESS;
}
SIM_API hiprtcResult hiprtcDestroyProgram(hiprtcProgram* handle) {
  Lock lock;
  if (!handle || !programs().erase(*handle)) return HIPRTC_ERROR_INVALID_PROGRAM;
  delete *handle;
  *handle = nullptr;
  return HIPRTC_SUCCESS;
}
