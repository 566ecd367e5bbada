#include "devices/fault_guard.h"

#include <atomic>
#include <iterator>
#include <mutex>

namespace tiny {
namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

std::mutex mutex;
int guards = 0;
struct sigaction before[std::size(kSignals)];
std::atomic<FaultHandler> current{nullptr};

void on_signal(int signal, siginfo_t* info, void*) {
  if (const FaultHandler handler = current.load()) handler(signal, info->si_addr);
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
  // Not blocked in the handler: it may never return.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
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
