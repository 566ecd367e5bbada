// Authenticates a text by a shared key: HMAC-SHA-256 (RFC 2104, FIPS 198-1).
#pragma once
#include <string>
#include <string_view>

namespace tiny {

std::string hmac_sha256(std::string_view key, std::string_view text);  // 32 bytes

// Takes as long whatever the texts are: how long it takes tells nobody where they differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);

// Bytes that nobody guesses, of the operating system.
std::string random_bytes(size_t count);

}  // namespace tiny
