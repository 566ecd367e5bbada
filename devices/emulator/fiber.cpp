#include "devices/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "tiny/base/error.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// It counts calls and returns per thread, which here do not pair up.
#define NO_THREAD_SANITIZER __attribute__((no_sanitize("thread")))

namespace tiny {

#if defined(__x86_64__)

// The registers that a function must preserve (System V ABI, figure 3.4) are kept on the stack that
// is left; the control words of x87 and SSE are the same on all.
extern "C" void tiny_switch_stack(void** from, void* to);
extern "C" void tiny_enter_fiber();
asm(R"(
.text
.hidden tiny_switch_stack
.globl tiny_switch_stack
.type tiny_switch_stack, @function
tiny_switch_stack:
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
.size tiny_switch_stack, .-tiny_switch_stack
.hidden tiny_enter_fiber
.globl tiny_enter_fiber
.type tiny_enter_fiber, @function
tiny_enter_fiber:
  movq %r12, %rdi
  callq *%r13
  ud2
.size tiny_enter_fiber, .-tiny_enter_fiber
)");

FiberContext::FiberContext() = default;
FiberContext::~FiberContext() = default;
FiberContext::FiberContext(FiberContext&&) noexcept = default;
FiberContext& FiberContext::operator=(FiberContext&&) noexcept = default;

void FiberContext::start(char* stack, size_t bytes, void (*function)(void*), void* argument) {
  // The registers that tiny_switch_stack pops: r15, r14, r13, r12, rbx, rbp, the return address.
  // After that the stack pointer is a multiple of 16, as it must be where tiny_enter_fiber calls
  // the function.
  auto top = reinterpret_cast<uintptr_t>(stack + bytes) / 16 * 16;
  auto** frame = reinterpret_cast<void**>(top) - 9;
  std::memset(frame, 0, 9 * sizeof(void*));
  frame[2] = reinterpret_cast<void*>(function);
  frame[3] = argument;
  frame[6] = reinterpret_cast<void*>(&tiny_enter_fiber);
  stack_pointer_ = frame;
}

NO_THREAD_SANITIZER void FiberContext::switch_to(FiberContext& from) {
  tiny_switch_stack(&from.stack_pointer_, stack_pointer_);
}

#else

struct FiberContext::State {
  ucontext_t context;
  void (*function)(void*);
  void* argument;
};

namespace {

// makecontext passes ints only: a pointer goes in two.
void enter_fiber(unsigned high, unsigned low) {
  auto address = static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low);
  auto** call = reinterpret_cast<void**>(address);
  reinterpret_cast<void (*)(void*)>(call[0])(call[1]);
}

}  // namespace

FiberContext::FiberContext() : state_(std::make_unique<State>()) {}
FiberContext::~FiberContext() = default;
FiberContext::FiberContext(FiberContext&&) noexcept = default;
FiberContext& FiberContext::operator=(FiberContext&&) noexcept = default;

void FiberContext::start(char* stack, size_t bytes, void (*function)(void*), void* argument) {
  getcontext(&state_->context);
  state_->context.uc_stack.ss_sp = stack;
  state_->context.uc_stack.ss_size = bytes;
  state_->context.uc_link = nullptr;
  state_->function = function;
  state_->argument = argument;
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(&state_->function));
  makecontext(&state_->context, reinterpret_cast<void (*)()>(enter_fiber), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
}

NO_THREAD_SANITIZER void FiberContext::switch_to(FiberContext& from) {
  swapcontext(&from.state_->context, &state_->context);
}

#endif

namespace {
constexpr size_t kStacksOfChunk = 64;
}

FiberStacks::~FiberStacks() {
  for (char* chunk : chunks_) munmap(chunk, kStacksOfChunk * kBytes);
}

char* FiberStacks::stack(size_t i) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  while (i / kStacksOfChunk >= chunks_.size()) {
    void* chunk = mmap(nullptr, kStacksOfChunk * kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (chunk == MAP_FAILED)
      throw DeviceError(cat("cannot map stacks for fibers: ", std::strerror(errno)));
    chunks_.push_back(static_cast<char*>(chunk));
    for (size_t s = 0; s < kStacksOfChunk; ++s)
      mprotect(chunks_.back() + s * kBytes, page, PROT_NONE);
  }
  return chunks_[i / kStacksOfChunk] + i % kStacksOfChunk * kBytes + page;
}

// Tops of neighbours lie in different cache sets: at the same place of each stack they would all
// push each other out.
size_t FiberStacks::usable_bytes(size_t i) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return kBytes - page - i % 32 * 320;
}

void FiberPool::start(size_t i) {
  fibers_[i]->context.start(stacks_.stack(i), stacks_.usable_bytes(i), function_, fibers_[i].get());
  free_.push_back(fibers_[i].get());
}

void FiberPool::prepare(size_t count) {
  while (free_.size() < count) {
    stacks_.stack(fibers_.size());  // throws where there is no memory for it
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->owner = owner_;
    start(fibers_.size() - 1);
  }
  free_.reserve(fibers_.size());
}

void FiberPool::restart() {
  free_.clear();
  for (size_t i = 0; i < fibers_.size(); ++i) start(i);
}

}  // namespace tiny
