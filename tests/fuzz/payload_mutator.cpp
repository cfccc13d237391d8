#include "fuzz.h"
#include "payload_document.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

// Changes a payload where it is JSON: values, keys, and what lies in what; else, and now and then, its bytes.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t * data, std::size_t size, std::size_t max_size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t * data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned seed);

namespace token_trie::fuzz {
namespace {

class Mutator {
   public:
    explicit Mutator(unsigned seed) : rng_(seed) {}

    bool one_in(std::size_t n) { return below(n) == 0; }
    void mutate(Document & document) {
        for (std::size_t n = 1 + below(3); n > 0; --n) {
            Document & value = pick(document);
            switch (below(6)) {
                case 0: value = leaf_value(); break;
                case 1: value = Document(pick(document)); break;
                case 2: wrap(value); break;
                case 3: shrink(value); break;
                default: grow(value, document); break;
            }
        }
    }

   private:
    std::size_t below(std::size_t n) { return rng_() % n; }

    // One of the values below, each level as likely to be the last.
    Document & pick(Document & value) {
        Document * at = &value;
        while (at->is_structured() && !at->empty() && !one_in(5)) {
            at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(below(at->size())));
        }
        return *at;
    }

    Document leaf_value() {
        static const std::array<Document, 22> values = {
            Document(0),
            Document(1),
            Document(7),
            Document(8),
            Document(299),
            Document(300),
            Document(-1),
            Document(INT32_MAX),
            Document(std::int64_t{INT32_MAX} + 1),
            Document(INT64_MIN),
            Document(UINT64_MAX),
            Document(1.5),
            Document(true),
            Document(nullptr),
            Document(""),
            Document("a"),
            Document("b"),
            Document(std::string("\0", 1)),
            Document("\xc3\xa9"),
            Document("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
            Document::array(),
            Document::object()};
        return values[below(values.size())];
    }

    const char * key() {
        static constexpr std::array<const char *, 8> keys = {"modelId", "vocab", "descriptors", "path",
                                                             "leaves",  "name",  "tokens",      "other"};
        return keys[below(keys.size())];
    }

    void wrap(Document & value) {
        Document outer = one_in(2) ? Document::array() : Document::object();
        for (std::size_t n = one_in(8) ? below(70) : 1; n > 0; --n) {
            Document inner = Document::array();
            inner.push_back(std::move(value));
            value = std::move(inner);
        }
        if (outer.is_array()) {
            outer.push_back(std::move(value));
        } else {
            outer[key()] = std::move(value);
        }
        value = std::move(outer);
    }

    void shrink(Document & value) {
        if (value.is_structured() && !value.empty()) {
            value.erase(std::next(value.begin(), static_cast<std::ptrdiff_t>(below(value.size()))));
        }
    }

    void grow(Document & value, Document & document) {
        Document item = one_in(2) ? Document(pick(document)) : leaf_value();
        if (value.is_array()) {
            value.insert(std::next(value.begin(), static_cast<std::ptrdiff_t>(below(value.size() + 1))),
                         std::move(item));
        } else if (value.is_object()) {
            value[key()] = std::move(item);
        } else {
            value = std::move(item);
        }
    }

    std::minstd_rand rng_;
};

}  // namespace
}  // namespace token_trie::fuzz

std::size_t LLVMFuzzerCustomMutator(std::uint8_t * data, std::size_t size, std::size_t max_size, unsigned seed) {
    using namespace token_trie::fuzz;
    Mutator mutator(seed);
    if (size < 2 || mutator.one_in(4)) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    if (mutator.one_in(16)) {
        data[0] = static_cast<std::uint8_t>('0' + seed % 16);
    }
    Document document = Document::parse(data + 1, data + size, nullptr, /* allow_exceptions = */ false);
    if (document.is_discarded()) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    mutator.mutate(document);
    const std::string out = document.dump(-1, ' ', false, Document::error_handler_t::replace);
    if (out.size() + 1 > max_size) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    std::memcpy(data + 1, out.data(), out.size());
    return out.size() + 1;
}
