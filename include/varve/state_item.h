// SPDX-License-Identifier: Apache-2.0
//
// Items are what a trainer saves besides tensors and TrainerProgress: the state of a data loader,
// of a random number generator, of a scheduler. An item has bytes of its own, or stands for a
// variable of the trainer.
//
//   state.items.push_back(varve::ItemOf("loader", &loader_position));  // a variable
//   state.items.push_back({.name = "config", .value = bytes});         // bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "varve/result.h"

namespace varve {

// A variable of the trainer, as saves and loads see it. ItemOf makes one for plain values, strings
// and vectors. For a variable of another kind, derive a class that turns it into bytes and back.
//
// Thread rule: BeginSave calls Read, and a load calls Check and Set, on the thread that called
// BeginSave or the load.
class ItemVariable {
 public:
  ItemVariable() = default;
  ItemVariable(const ItemVariable&) = delete;
  ItemVariable& operator=(const ItemVariable&) = delete;
  virtual ~ItemVariable() = default;

  // Returns the bytes to save. Read is called once for each save, and not for steps without a save.
  // If it returns an error, BeginSave returns that error, and no save starts.
  virtual Result<std::vector<std::byte>> Read() const = 0;
  // Says whether Set can take these bytes of a checkpoint. A load calls it before anything changes.
  virtual Status Check(std::span<const std::byte> bytes) const = 0;
  // Sets the variable. Check has returned ok for the same bytes.
  virtual void Set(std::span<const std::byte> bytes) = 0;
};

// An item: opaque bytes, up to 64 MiB, or a variable that gives them.
struct StateItem {
  std::string name;
  std::optional<uint32_t> rank{};  // the rank that it belongs to. Unset: the whole job
  std::vector<std::byte> value{};  // not used when there is a variable
  // Set: the item stands for this variable. BeginSave reads it, and a load fills it.
  std::shared_ptr<ItemVariable> variable{};
};

namespace internal {

// "has 12 bytes, expected WHAT"
Status WrongItemSize(size_t found, const std::string& what);

// A trivially copyable value. A save stores its bytes.
template <typename T>
class PlainVariable : public ItemVariable {
 public:
  explicit PlainVariable(T* variable) : variable_(variable) {}
  Result<std::vector<std::byte>> Read() const override {
    const auto bytes = std::as_bytes(std::span(variable_, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  Status Check(std::span<const std::byte> bytes) const override {
    if (bytes.size() == sizeof(T)) return Status::Ok();
    return WrongItemSize(bytes.size(), std::to_string(sizeof(T)));
  }
  void Set(std::span<const std::byte> bytes) override {
    std::memcpy(variable_, bytes.data(), sizeof(T));
  }

 private:
  T* const variable_;
};

// A string or a vector, which gets as many elements as were saved.
template <typename Container>
class ListVariable : public ItemVariable {
 public:
  explicit ListVariable(Container* variable) : variable_(variable) {}
  Result<std::vector<std::byte>> Read() const override {
    const auto bytes = std::as_bytes(std::span(variable_->data(), variable_->size()));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }
  Status Check(std::span<const std::byte> bytes) const override {
    if (bytes.size() % kElement == 0) return Status::Ok();
    return WrongItemSize(bytes.size(), "a multiple of " + std::to_string(kElement));
  }
  void Set(std::span<const std::byte> bytes) override {
    variable_->resize(bytes.size() / kElement);
    if (!bytes.empty()) std::memcpy(variable_->data(), bytes.data(), bytes.size());
  }

 private:
  static constexpr size_t kElement = sizeof(typename Container::value_type);
  Container* const variable_;
};

template <typename T>
inline constexpr bool kIsList = false;
template <>
inline constexpr bool kIsList<std::string> = true;
template <typename T>
inline constexpr bool kIsList<std::vector<T>> = std::is_trivially_copyable_v<T>;
template <>
inline constexpr bool kIsList<std::vector<bool>> = false;  // has no bytes to point to

}  // namespace internal

// Returns an item that stands for `*variable`. T is a trivially copyable type without pointers (an
// integer, a struct), a std::vector of such a type other than bool, or std::string. `*variable`
// must stay where it is while the state, or a copy of the state, is used. Bytes of padding in a
// struct are saved as they are.
template <typename T>
StateItem ItemOf(std::string name, T* variable, std::optional<uint32_t> rank = {}) {
  StateItem item{.name = std::move(name), .rank = rank};
  if constexpr (internal::kIsList<T>) {
    item.variable = std::make_shared<internal::ListVariable<T>>(variable);
  } else {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "derive a class from ItemVariable, which turns this variable into bytes");
    item.variable = std::make_shared<internal::PlainVariable<T>>(variable);
  }
  return item;
}

}  // namespace varve
