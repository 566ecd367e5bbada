// Fibers: functions with a stack of their own that run until they hand over. A switch is a few
// instructions on x86-64 and swapcontext elsewhere. A fiber never changes its operating system
// thread, and exceptions must not leave its function.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace tiny {

// Where a suspended flow of control goes on.
class FiberContext {
 public:
  FiberContext();
  ~FiberContext();
  FiberContext(FiberContext&&) noexcept;
  FiberContext& operator=(FiberContext&&) noexcept;

  // The next switch_to enters `function(argument)` on the stack, which ends at `stack + bytes`. The
  // function must not return.
  void start(char* stack, size_t bytes, void (*function)(void*), void* argument);

  // Saves this flow of control in `from` and goes on with this context; returns when something
  // switches to `from`.
  void switch_to(FiberContext& from);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  struct State;
  std::unique_ptr<State> state_;
#endif
};

// Stacks for fibers of one thread, each with a page below it that faults, so that an overflow does
// not run into its neighbour. Memory is used where a stack was touched only.
class FiberStacks {
 public:
  static constexpr size_t kBytes = 128 << 10;  // of each, with the guard page

  FiberStacks() = default;
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  // The lowest address of stack i, and its bytes. Throws DeviceError when out of memory.
  char* stack(size_t i);
  size_t usable_bytes(size_t i) const;

 private:
  std::vector<char*> chunks_;
};

// Fibers of one function, to be taken and put back.
class FiberPool {
 public:
  struct Fiber {
    void* owner = nullptr;
    FiberContext context;
  };

  // The function gets the Fiber that it runs in, with this owner.
  FiberPool(void (*function)(void*), void* owner) : function_(function), owner_(owner) {}

  // From here on so many can be taken.
  void prepare(size_t count);
  Fiber* take() {
    Fiber* fiber = free_.back();
    free_.pop_back();
    return fiber;
  }
  void put_back(Fiber* fiber) { free_.push_back(fiber); }
  // All fibers begin anew and can be taken, wherever they stopped.
  void restart();

 private:
  void start(size_t i);

  void (*const function_)(void*);
  void* const owner_;
  FiberStacks stacks_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
};

}  // namespace tiny
