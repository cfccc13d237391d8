#include "llama/model_file.h"

#include "trie/error.h"
#include "trie/sha256.h"

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr std::size_t kSample = 4096;

struct Free {
    void operator()(gguf_context * file) const noexcept { gguf_free(file); }
    void operator()(ggml_context * tensors) const noexcept { ggml_free(tensors); }
};

class File {
   public:
    explicit File(const std::string & path) : path_(path), data_(path, std::ios::binary) {
        ggml_context * tensors = nullptr;
        gguf_init_params params{};
        params.no_alloc = true;
        params.ctx = &tensors;
        file_.reset(gguf_init_from_file(path.c_str(), params));
        tensors_.reset(tensors);
        if (!file_ || !data_) {
            fail();
        }
    }

    // Of those that the model is in.
    std::uint32_t n_files() const {
        const std::int64_t key = gguf_find_key(file_.get(), "split.count");
        return key < 0 || gguf_get_kv_type(file_.get(), key) != GGUF_TYPE_UINT16
                   ? 1
                   : std::max<std::uint32_t>(gguf_get_val_u16(file_.get(), key), 1);
    }

    void add_to(Sha256 & hash) {
        for (ggml_tensor * tensor = ggml_get_first_tensor(tensors_.get()); tensor != nullptr;
             tensor = ggml_get_next_tensor(tensors_.get(), tensor)) {
            const std::string name = ggml_get_name(tensor);
            hash.update(name.c_str(), name.size() + 1);
            hash.update(ggml_type_name(tensor->type));
            hash.update(tensor->ne, sizeof tensor->ne);
            const std::size_t begin = gguf_get_data_offset(file_.get()) +
                                      gguf_get_tensor_offset(file_.get(), gguf_find_tensor(file_.get(), name.c_str()));
            const std::size_t n = ggml_nbytes(tensor);
            add_bytes(hash, begin, std::min(n, kSample));
            add_bytes(hash, begin + n - std::min(n, kSample), std::min(n, kSample));
        }
    }

   private:
    void add_bytes(Sha256 & hash, std::size_t begin, std::size_t n) {
        std::array<char, kSample> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init): read before it is used
        data_.seekg(static_cast<std::streamoff>(begin));
        if (!data_.read(bytes.data(), static_cast<std::streamsize>(n))) {
            fail();
        }
        hash.update(bytes.data(), n);
    }
    [[noreturn]] void fail() const { throw Error(Status::argument, "cannot read the tensors of " + path_); }

    std::string path_;
    std::ifstream data_;
    std::unique_ptr<gguf_context, Free> file_;
    std::unique_ptr<ggml_context, Free> tensors_;
};

// That of the i-th of n, beside the first.
std::string sibling(const std::string & first, std::uint32_t i, std::uint32_t n) {
    std::array<char, 32> suffix{};
    const auto suffix_of = [&](std::uint32_t at) {
        std::snprintf(suffix.data(), suffix.size(), "-%05u-of-%05u.gguf", at, n);
        return std::string(suffix.data());
    };
    const std::string own = suffix_of(1);
    if (first.size() < own.size() || first.compare(first.size() - own.size(), own.size(), own) != 0) {
        throw Error(Status::argument, "cannot find the other files of " + first);
    }
    return first.substr(0, first.size() - own.size()) + suffix_of(i);
}

}  // namespace

std::string tensors_digest(const std::string & path) {
    Sha256 hash;
    File first(path);
    first.add_to(hash);
    for (std::uint32_t i = 2, n = first.n_files(); i <= n; ++i) {
        File(sibling(path, i, n)).add_to(hash);
    }
    return hash.finish_text();
}

}  // namespace token_trie
