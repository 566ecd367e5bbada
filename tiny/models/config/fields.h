// Values of a JSON object by key, of the kinds that configurations have, with errors that name key
// and value.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tiny/base/error.h"

namespace tiny::models {

class Fields {
 public:
  // Any of these keys, which mean the same: the first that is there, and not null, counts.
  using Keys = std::initializer_list<const char*>;

  // `where` begins every error. Throws Error unless the text is an object in JSON.
  static Fields parse(const std::string& text, const std::string& where);

  const std::string& where() const { return where_; }
  std::string dump() const;  // as JSON
  bool has(Keys keys) const;
  bool is_null(const char* key) const;  // is there, and null

  // Without a default the key has to be there. Errors for another type, or a value below `least`.
  int64_t integer(Keys keys, std::optional<int64_t> without, int64_t least = 1) const;
  double number(Keys keys, std::optional<double> without) const;
  double positive(Keys keys, std::optional<double> without) const;
  bool flag(Keys keys, bool without) const;
  std::string text(Keys keys, const std::string& without) const;
  std::vector<int64_t> integers(Keys keys) const;  // one number counts as a list
  std::vector<std::string> texts(Keys keys) const;
  Fields object(Keys keys) const;
  int64_t size(Keys keys) const;            // of an object or a list; 0 without one
  std::vector<std::string> values() const;  // of an object of texts

  // Throws Error: the key has a value that is not supported. `instead` says what is.
  [[noreturn]] void unsupported(const char* key, const std::string& instead) const;
  // Throws that unless the flag is as it should be, or is not there.
  void require_flag(const char* key, bool wanted) const;

 private:
  struct Object;  // fields.cpp: the JSON object
  struct Found;   // a key and its value
  Fields(std::shared_ptr<const Object> object, std::string where);
  Found find(Keys keys) const;
  Found get(Keys keys, bool optional) const;  // Error where it has to be there and is not
  [[noreturn]] void wrong(const Found& found, const std::string& wanted) const;

  std::shared_ptr<const Object> object_;
  std::string where_;
};

}  // namespace tiny::models
