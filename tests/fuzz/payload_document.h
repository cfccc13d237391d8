#pragma once

#include "trie/json.h"

namespace token_trie::fuzz {

// An object that keeps every key, in order, also one that stands twice.
template <class Key,
          class Value,
          class Less = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, Value>>>
struct EveryKey : nlohmann::ordered_map<Key, Value, Less, Allocator> {
    using Base = nlohmann::ordered_map<Key, Value, Less, Allocator>;
    using Base::Base;

    Value & operator[](const Key & key) {
        this->Base::Container::emplace_back(key, Value());
        return this->back().second;
    }
    Value & operator[](Key && key) {
        this->Base::Container::emplace_back(std::move(key), Value());
        return this->back().second;
    }
};

using Document = nlohmann::basic_json<EveryKey>;

}  // namespace token_trie::fuzz
