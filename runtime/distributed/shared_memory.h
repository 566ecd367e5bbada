// Messages between ranks on one machine (tiny/run/ranks.h), through memory that they share: UCX's
// tag matching over its transport `posix`, from a library that is opened at run time (UCX's
// documentation, "UCP: tag matching"). It listens nowhere: such memory can only be opened by
// processes of the same user, through /proc.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace tiny {

class SharedMemory {
 public:
  // Called where there is nothing to do: returns when that socket can be read, or something else
  // calls for a look; at once where it is -1. False: the peer has ended, so that no more will come.
  // What it throws ends the message, and all that would come after it.
  using Idle = std::function<bool(int socket)>;

  SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // What another process on this machine needs to send to this one; empty where there is no UCX.
  const std::string& address() const { return address_; }
  // Throws Error where that memory cannot be opened.
  void connect(int rank, const std::string& address);
  bool reaches(int rank) const { return peers_.count(rank) > 0; }

  // All bytes. Messages from one rank to another arrive in the order in which they were sent. False
  // where the peer has ended before; a message of another length is an Error.
  bool send(int to, const void* data, size_t bytes, const Idle& idle);
  bool receive(int from, void* data, size_t bytes, const Idle& idle);

 private:
  bool complete(void* request, const Idle& idle);

  void* worker_ = nullptr;  // ucp_worker_h
  int wakeup_ = -1;         // a descriptor that can be read when there is something to do
  std::string address_;
  std::map<int, void*> peers_;  // by rank: ucp_ep_h
  bool is_broken_ = false;      // a message was given up: UCX may still write where it was to go
};

}  // namespace tiny
