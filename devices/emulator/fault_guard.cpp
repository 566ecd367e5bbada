#include "devices/emulator/fault_guard.h"

#include <ucontext.h>

#include <atomic>
#include <cstdint>
#include <iterator>
#include <mutex>

namespace tiny {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

std::mutex mutex;
int guards = 0;
struct sigaction before[std::size(kSignals)];
std::atomic<FaultHandler> current{nullptr};

// Lets the handler return into `target`, as if the instruction at fault had called it.
bool go_on_at(const FaultTarget& target, int signal, const void* address, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  const auto stack = reinterpret_cast<uintptr_t>(target.stack_end) / 16 * 16;
#if defined(__x86_64__)
  registers.gregs[REG_RIP] = reinterpret_cast<greg_t>(target.function);
  registers.gregs[REG_RSP] = static_cast<greg_t>(stack - 8);  // as after a call
  registers.gregs[REG_RDI] = signal;
  registers.gregs[REG_RSI] = reinterpret_cast<greg_t>(address);
  return true;
#elif defined(__aarch64__)
  registers.pc = reinterpret_cast<uintptr_t>(target.function);
  registers.sp = stack;
  registers.regs[0] = signal;
  registers.regs[1] = reinterpret_cast<uintptr_t>(address);
  return true;
#else
  (void)registers, (void)stack, (void)signal, (void)address;
  return false;
#endif
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (const FaultHandler handler = current.load())
    if (const FaultTarget target = handler(); target.function != nullptr)
      if (go_on_at(target, signal, info->si_addr, context)) return;
  // Not ours: the instruction is executed again, with the handler that was there before.
  for (size_t i = 0; i < std::size(kSignals); ++i)
    if (kSignals[i] == signal) sigaction(signal, &before[i], nullptr);
}

}  // namespace

FaultGuard::FaultGuard(FaultHandler handler) {
  std::lock_guard lock(mutex);
  if (guards++ > 0) return;
  current = handler;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before[i]);
}

FaultGuard::~FaultGuard() {
  std::lock_guard lock(mutex);
  if (--guards > 0) return;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
  current = nullptr;
}

SignalStack::SignalStack(char* stack, size_t bytes) {
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = bytes;
  sigaltstack(&own, &before_);
}

SignalStack::~SignalStack() { sigaltstack(&before_, nullptr); }

}  // namespace tiny
