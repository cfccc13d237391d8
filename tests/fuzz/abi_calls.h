#pragma once

#include "abi_contexts.h"
#include "abi_model.h"
#include "abi_payloads.h"
#include "fuzz.h"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <thread>

namespace token_trie::fuzz {

// One stream with its model, called as an input says.
class Caller {
   public:
    explicit Caller(std::uint32_t context);
    ~Caller();
    Caller(const Caller &) = delete;
    Caller & operator=(const Caller &) = delete;

    // One call, and whether all stands as it should behind it.
    void call(Input & in);

    static constexpr std::uint32_t kCalls = 20;
    static std::array<std::atomic<std::uint64_t>, kCalls> counts;

   private:
    Caller(Caller & parent, token_trie_stream * stream);

    void open(Input & in);
    void prefill(Input & in);
    void append(Input & in);
    void set_trie(Input & in);
    void set_trie_ext(Input & in);
    void clear();
    void set_grammar(Input & in);
    void read_set(Input & in);
    const llama_vocab * vocab() const;
    void set_by_path(Input & in);
    void generate(Input & in, const std::vector<const char *> & stops = {});
    void generate_until(Input & in);
    void next(Input & in);
    void score(Input & in);
    void search(Input & in);
    void others(Input & in);
    void fork(Input & in);
    void close();
    void beside_another_thread(Input & in);

    struct Generation;
    static bool on_token(const token_trie_token * token, void * user);
    void call_from_callback(std::uint32_t which);
    void check_state();
    Expected expected() const;
    // Whether another thread may be in a call of this stream, or of one that it shares a context with.
    bool is_held_up() const;

    const TinyMake & make_;
    std::set<Token> ends_;
    token_trie_stream * stream_ = nullptr;  // also one that is closed
    bool is_open_ = false;
    bool is_disturbed_ = false;  // by another thread
    bool is_closed_by_another_ = false;
    StreamModel model_;
    std::shared_ptr<const token_trie_set> set_;  // read last,
    std::map<std::string, SetModel> sets_;       // and what is in it, by path
    Caller * parent_ = nullptr;
    std::unique_ptr<Caller> fork_;
};

}  // namespace token_trie::fuzz
