#include "abi/constraint.h"
#include "abi/guard.h"
#include "abi/structs.h"
#include "trie/trie_file.h"

namespace {

using namespace token_trie;

std::shared_ptr<const Trie> build_texts(const Vocab & vocab, std::vector<std::string> texts) {
    LeafList leaves = tokenize(vocab.get(), texts, "texts");
    leaves.names = std::move(texts);
    leaves.vocab = vocab.fingerprint();
    return Trie::build(std::move(leaves));
}

}  // namespace

extern "C" {

token_trie_set * token_trie_set_read(const llama_vocab * vocab,
                                     int32_t n_vocab,
                                     const char * payload_json,
                                     size_t payload_len) {
    return guard_pointer<token_trie_set *>([&] {
        require_not_null(payload_json, "payload_json");
        check_not_negative(n_vocab, "n_vocab");
        const Vocab facts(vocab);
        auto set =
            std::make_unique<Set>(std::string_view(payload_json, payload_len), n_vocab == 0 ? facts.size() : n_vocab);
        for (const auto & entry : set->by_path()) {
            check_vocab(*entry.second, facts);
        }
        return set.release();
    });
}

token_trie_set * token_trie_set_from_tokens(const llama_token * tokens,
                                            const uint64_t * offsets,
                                            size_t n_members,
                                            const char * const * names,
                                            const char * fingerprint) {
    return guard_pointer<token_trie_set *>([&] {
        require_not_null(offsets, "offsets");
        require_array(tokens, offsets[n_members], "tokens");
        return std::make_unique<Set>(
                   Trie::build({tokens, offsets, n_members},
                               names == nullptr ? std::vector<std::string>() : to_names(names, n_members, "names"),
                               fingerprint == nullptr ? "" : fingerprint))
            .release();
    });
}

token_trie_set * token_trie_set_from_texts(const llama_vocab * vocab, const char * const * texts, size_t n_texts) {
    return guard_pointer<token_trie_set *>([&] {
        require_not_null(vocab, "vocab");
        return std::make_unique<Set>(build_texts(Vocab(vocab), to_names(texts, n_texts, "texts"))).release();
    });
}

token_trie_set * token_trie_set_select(const token_trie_set * set, const char * path) {
    return guard_pointer<token_trie_set *>([&] {
        const Set & from = to_set(set);
        return (path == nullptr ? std::make_unique<Set>(from) : std::make_unique<Set>(from.at(path))).release();
    });
}

token_trie_set * token_trie_set_open(const char * file) {
    return guard_pointer<token_trie_set *>([&] {
        require_not_null(file, "file");
        return std::make_unique<Set>(open_trie_file(file)).release();
    });
}

token_trie_set * token_trie_set_filter(const token_trie_set * set, const unsigned char * keep, size_t n_members) {
    return guard_pointer<token_trie_set *>([&] {
        const std::shared_ptr<const Trie> & trie = to_set(set).whole();
        require_not_null(keep, "keep");
        throw_if(n_members != trie->n_leaves(), Status::argument, "n_members: ", n_members, " for a set of ",
                 trie->n_leaves());
        return std::make_unique<Set>(Trie::filtered(trie, keep)).release();
    });
}

void token_trie_set_free(token_trie_set * set) { const std::unique_ptr<token_trie_set> freed(set); }

int32_t token_trie_set_get_info(const token_trie_set * set, token_trie_set_info * info) {
    return guard([&] {
        const Trie & trie = *to_set(set).whole();
        token_trie_set_info out{};
        out.n_members = trie.n_leaves();
        out.n_nodes = trie.n_nodes();
        out.max_tokens = trie.max_length();
        out.n_bytes = trie.total_bytes();
        out.n_left = trie.n_members();
        write_struct(out, info, "info");
    });
}

int32_t token_trie_set_get_member(
    const token_trie_set * set, size_t i, const char ** name, llama_token * tokens, size_t capacity, size_t * n) {
    return guard([&] {
        const Trie & trie = *to_set(set).whole();
        throw_if(i >= trie.n_leaves(), Status::argument, "i: ", i, " of ", trie.n_leaves(), " members");
        const auto leaf = static_cast<LeafId>(i);
        throw_if(!trie.has_leaf(leaf), Status::argument, "i: member ", i, " is filtered out");
        write_tokens(trie.sequence(leaf), tokens, capacity, n);
        if (name != nullptr) {
            *name = trie.stored_name(leaf);
        }
    });
}

}  // extern "C"
