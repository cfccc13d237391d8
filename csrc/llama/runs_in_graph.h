#pragma once

#include <type_traits>

namespace token_trie {

// Whether the headers' llama_sampler_i has the callbacks of samplers inside the compute graph, as those have that have
// copy_state.
template <typename Interface, typename = void>
struct RunsInGraph : std::false_type {};
template <typename Interface>
struct RunsInGraph<Interface, std::void_t<decltype(&Interface::copy_state)>> : std::true_type {};

}  // namespace token_trie
