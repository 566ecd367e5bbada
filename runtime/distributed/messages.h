// Messages between ranks (tiny/run/ranks.h): through shared memory between those of one machine
// (runtime/distributed/shared_memory.h), over TLS between machines (runtime/distributed/link.h).
// Each pair of processes has a link, made at the first use (runtime/distributed/meeting.h), by
// which one sees that the other has ended.
//
// All ranks send and receive in one order, that of the steps of one program; a message carries its
// number and what it is, and one that is not the one expected is an Error that says both, on all of
// them. A rank that has ended, or is silent for COLLECTIVE_TIMEOUT seconds, is an Error with its
// number.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/distributed/link.h"

namespace tiny {

// `what`: for errors, and the same on both sides: "copy 12 of f32[128], all_reduce".
void send_message(int to_rank, const void* data, size_t bytes, const std::string& what);
void receive_message(int from_rank, void* data, size_t bytes, const std::string& what);

// Links to all other ranks, by rank, null for this one, beside those of the messages: for a thread
// of its own. All ranks call this.
std::vector<std::unique_ptr<Link>> connect_ranks();

// Throws Error on every rank, naming the first line that differs, unless all give the same text.
void agree_on(const std::string& text);

}  // namespace tiny
