// Messages between ranks (tiny/run/ranks.h), over TCP: each pair of processes has a connection,
// made at the first use (runtime/distributed/meeting.h).
//
// All ranks send and receive in one order, that of the steps of one program; a message carries its
// number and what it is, and one that is not the one expected is an Error that says both. A rank
// that has ended, or is silent for COLLECTIVE_TIMEOUT seconds, is an Error with its number.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace tiny {

// `what`: for errors, and the same on both sides: "copy 12 of f32[128], all_reduce".
void send_message(int to_rank, const void* data, size_t bytes, const std::string& what);
void receive_message(int from_rank, void* data, size_t bytes, const std::string& what);

// Sockets to all other ranks, by rank, -1 for this one, of a connection beside that of the
// messages: for a thread of its own. All ranks call this.
std::vector<int> connect_ranks();

// Throws Error on every rank, naming the first line that differs, unless all give the same text.
void agree_on(const std::string& text);

}  // namespace tiny
