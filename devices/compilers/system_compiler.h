// The system's C and C++ compilers, run as child processes, and the shared objects they make.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tiny {

// How one language is compiled.
struct SystemCompiler {
  std::string language;                 // "C", for messages
  std::string variable;                 // environment variable with the command, "CC"
  std::vector<std::string> candidates;  // programs to look for where that is empty
  std::string ending;                   // of source files, ".c"
  std::vector<std::string> flags;
  std::string advice;     // where none is found: what to do
  int least_version = 0;  // the lowest major version that will do
};

// The compiler's command, version and flags, for keys of caches. Throws DeviceError when there is
// no compiler.
std::string system_compiler_id(const SystemCompiler& compiler);

// The bytes of a shared object made of `text`. Throws DeviceError with the compiler's messages,
// which names the kernel `entry`.
std::string compile_shared_object(const SystemCompiler& compiler, const std::string& entry,
                                  const std::string& text);
// A shared object of several files, one for each text.
std::string compile_shared_object(const SystemCompiler& compiler, const std::string& entry,
                                  const std::vector<std::string>& texts);

// The numbers of the lines that an instruction of a shared object was made from, innermost first:
// the function's, and of those that it was inlined into. Empty without addr2line or line tables.
std::vector<int> lines_of_code(const std::string& binary, uint64_t offset);

// A loaded shared object. Throws DeviceError when `binary` cannot be loaded.
class SharedObject {
 public:
  SharedObject(const std::string& binary, const std::string& entry);
  ~SharedObject();
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  // The address of an exported symbol. Throws DeviceError when there is none.
  void* symbol(const std::string& name) const;

 private:
  std::string entry_;
  void* library_;
};

}  // namespace tiny
