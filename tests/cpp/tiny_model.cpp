#include "tiny_model.h"

#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace token_trie::test {
namespace {

constexpr std::int64_t kEmbedding = 32;
constexpr std::int64_t kFeedForward = 64;
constexpr std::int64_t kInner = 2 * kEmbedding;  // mamba's
constexpr std::int64_t kState = 8;
constexpr std::int64_t kConvolution = 4;
constexpr std::int64_t kTimeRank = 2;
constexpr std::int64_t kRank = 4;  // an adapter's

// GGUF under construction.
class ModelFile {
   public:
    explicit ModelFile(std::string arch, Token n_vocab = kTinyVocab)
        : arch_(std::move(arch)),
          n_vocab_(n_vocab),
          file_(gguf_init_empty()),
          tensors_(ggml_init(
              {(4U << 20U) + static_cast<std::size_t>(n_vocab) * 2 * kEmbedding * sizeof(float), nullptr, false})) {
        gguf_set_val_str(file_, "general.architecture", arch_.c_str());
        number("block_count", n_layers());
        number("context_length", 1024);
        number("embedding_length", kEmbedding);
        number("feed_forward_length", kFeedForward);
    }
    ~ModelFile() {
        gguf_free(file_);
        ggml_free(tensors_);
    }
    ModelFile(const ModelFile &) = delete;
    ModelFile & operator=(const ModelFile &) = delete;

    Token n_vocab() const { return n_vocab_; }
    // Every sixth layer of gemma's looks at everything, and an old llama.cpp wants one that does.
    std::int64_t n_layers() const { return arch_ == "gemma3" ? 6 : 2; }

    void number(const char * key, std::int64_t value) {
        gguf_set_val_u32(file_, (arch_ + "." + key).c_str(), static_cast<std::uint32_t>(value));
    }
    void numbers(const char * key, const std::vector<std::uint32_t> & values) {
        gguf_set_arr_data(file_, (arch_ + "." + key).c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
    }
    void text(const char * key, const char * value) { gguf_set_val_str(file_, key, value); }
    void real(const char * key, float value) { gguf_set_val_f32(file_, (arch_ + "." + key).c_str(), value); }

    void tokenizer(TinyKind kind) {
        if (kind == TinyKind::no_tokenizer || kind == TinyKind::wide) {
            gguf_set_val_str(file_, "tokenizer.ggml.model", "no_vocab");
            number("vocab_size", n_vocab_);
            return;
        }
        std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
        std::vector<std::int32_t> types = {LLAMA_TOKEN_TYPE_UNKNOWN, LLAMA_TOKEN_TYPE_CONTROL,
                                           LLAMA_TOKEN_TYPE_CONTROL};
        for (unsigned byte = 0; byte < 256; ++byte) {
            const char * digits = "0123456789ABCDEF";
            texts.push_back(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
            types.push_back(LLAMA_TOKEN_TYPE_BYTE);
        }
        for (const char * word :
             {"READ", "_FILE", "_MAIL", kind == TinyKind::long_word ? "SEND_WITHOUT_DELAY" : "SEND"}) {
            texts.emplace_back(word);
            types.push_back(LLAMA_TOKEN_TYPE_NORMAL);
        }
        std::vector<const char *> pointers;
        pointers.reserve(texts.size());
        for (const std::string & text : texts) {
            pointers.push_back(text.c_str());
        }
        const std::vector<float> scores(texts.size(), 0.0F);
        gguf_set_val_str(file_, "tokenizer.ggml.model", "llama");
        gguf_set_arr_str(file_, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
        gguf_set_arr_data(file_, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
        gguf_set_arr_data(file_, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
        gguf_set_val_u32(file_, "tokenizer.ggml.bos_token_id", 1);
        gguf_set_val_u32(file_, "tokenizer.ggml.eos_token_id",
                         static_cast<std::uint32_t>(kind == TinyKind::other_end ? kSend : kTinyEnd));
        gguf_set_val_u32(file_, "tokenizer.ggml.unknown_token_id", 0);
        gguf_set_val_bool(file_, "tokenizer.ggml.add_bos_token", false);
        gguf_set_val_bool(file_, "tokenizer.ggml.add_space_prefix", false);
    }

    // Normal deviates around a mean; n_rows 0: a vector.
    void tensor(const std::string & name, std::int64_t row, std::int64_t n_rows, float spread, float mean = 0) {
        ggml_tensor * out = n_rows == 0 ? ggml_new_tensor_1d(tensors_, GGML_TYPE_F32, row)
                                        : ggml_new_tensor_2d(tensors_, GGML_TYPE_F32, row, n_rows);
        ggml_set_name(out, name.c_str());
        std::normal_distribution<float> value(mean, spread);
        auto * data = static_cast<float *>(out->data);
        for (std::int64_t i = 0; i < ggml_nelements(out); ++i) {
            data[i] = spread == 0 ? mean : value(rng_);
        }
        gguf_add_tensor(file_, out);
        last_ = out;
    }
    void quantize_last() {
        auto * data = static_cast<std::uint8_t *>(last_->data);
        std::vector<float> values(static_cast<std::size_t>(ggml_nelements(last_)));
        std::memcpy(values.data(), data, ggml_nbytes(last_));
        ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), data, 0, last_->ne[1], last_->ne[0], nullptr);
        gguf_set_tensor_type(file_, ggml_get_name(last_), GGML_TYPE_Q8_0);
    }
    void norm(const std::string & name, std::int64_t n) { tensor(name, n, 0, 0, 1); }
    void matrix(const std::string & name, std::int64_t row, std::int64_t n_rows) {
        tensor(name, row, n_rows, 1 / std::sqrt(static_cast<float>(row)));
    }

    std::string write(const std::string & path) const {
        EXPECT_TRUE(gguf_write_to_file(file_, path.c_str(), false));
        return path;
    }

   private:
    std::string arch_;
    Token n_vocab_;
    gguf_context * file_;
    ggml_context * tensors_;
    ggml_tensor * last_ = nullptr;
    std::mt19937 rng_{1};
};

void add_feed_forward(ModelFile & file, const std::string & layer) {
    file.norm(layer + "ffn_norm.weight", kEmbedding);
    file.matrix(layer + "ffn_gate.weight", kEmbedding, kFeedForward);
    file.matrix(layer + "ffn_up.weight", kEmbedding, kFeedForward);
    file.matrix(layer + "ffn_down.weight", kFeedForward, kEmbedding);
}

void add_attention(ModelFile & file, const std::string & layer, bool gemma) {
    file.norm(layer + "attn_norm.weight", kEmbedding);
    for (const char * name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
        file.matrix(layer + name + ".weight", kEmbedding, kEmbedding);
    }
    add_feed_forward(file, layer);
    if (gemma) {
        file.norm(layer + "attn_q_norm.weight", kEmbedding / 2);
        file.norm(layer + "attn_k_norm.weight", kEmbedding / 2);
        file.norm(layer + "post_attention_norm.weight", kEmbedding);
        file.norm(layer + "post_ffw_norm.weight", kEmbedding);
    }
}

void add_mamba(ModelFile & file, const std::string & layer) {
    file.norm(layer + "attn_norm.weight", kEmbedding);
    file.matrix(layer + "ssm_in.weight", kEmbedding, 2 * kInner);
    file.matrix(layer + "ssm_conv1d.weight", kConvolution, kInner);
    file.tensor(layer + "ssm_conv1d.bias", kInner, 0, 0.1F);
    file.matrix(layer + "ssm_x.weight", kInner, kTimeRank + 2 * kState);
    file.matrix(layer + "ssm_dt.weight", kTimeRank, kInner);
    file.tensor(layer + "ssm_dt.bias", kInner, 0, 0.1F);
    file.tensor(layer + "ssm_a", kState, kInner, 0.1F, -1);
    file.norm(layer + "ssm_d", kInner);
    file.matrix(layer + "ssm_out.weight", kInner, kEmbedding);
}

void add_lfm2(ModelFile & file, const std::string & layer, bool attends) {
    if (attends) {
        add_attention(file, layer, false);
        file.norm(layer + "attn_q_norm.weight", kEmbedding);
        file.norm(layer + "attn_k_norm.weight", kEmbedding);
        return;
    }
    file.norm(layer + "attn_norm.weight", kEmbedding);
    file.matrix(layer + "shortconv.conv.weight", kConvolution, kEmbedding);
    file.matrix(layer + "shortconv.in_proj.weight", kEmbedding, 3 * kEmbedding);
    file.matrix(layer + "shortconv.out_proj.weight", kEmbedding, kEmbedding);
    add_feed_forward(file, layer);
}

bool is_gemma(TinyKind kind) { return tiny_window(kind) > 0; }

const char * arch_of(TinyKind kind) {
    return is_gemma(kind)                ? "gemma3"
           : kind == TinyKind::diffusion ? "dream"
           : kind == TinyKind::recurrent ? "mamba"
           : kind == TinyKind::hybrid    ? "lfm2"
                                         : "llama";
}

std::string path_in_temp(const std::string & name) {
    return ::testing::TempDir() + "token_trie_tiny_" + std::to_string(::getpid()) + "_" + name + ".gguf";
}

std::string write_model(TinyKind kind) {
    const bool gemma = is_gemma(kind);
    const bool mamba = kind == TinyKind::recurrent;
    const bool lfm2 = kind == TinyKind::hybrid;
    ModelFile file(arch_of(kind), kind == TinyKind::wide ? kWideVocab : kTinyVocab);
    file.tokenizer(kind);
    file.real("attention.layer_norm_rms_epsilon", 1e-5F);
    if (mamba) {
        file.number("ssm.conv_kernel", kConvolution);
        file.number("ssm.inner_size", kInner);
        file.number("ssm.state_size", kState);
        file.number("ssm.time_step_rank", kTimeRank);
    } else {
        const std::uint32_t n_heads = lfm2 || kind == TinyKind::quantized ? 1 : 2;
        file.number("attention.head_count", n_heads);
        file.number("attention.head_count_kv", n_heads);
        file.number("attention.key_length", kEmbedding / n_heads);
        file.number("attention.value_length", kEmbedding / n_heads);
    }
    if (lfm2) {
        file.numbers("attention.head_count_kv", {0, 1});
        file.number("shortconv.l_cache", kConvolution);
    }
    if (gemma) {
        file.number("attention.sliding_window", tiny_window(kind));
    }
    file.tensor("token_embd.weight", kEmbedding, file.n_vocab(), 1);
    file.norm(lfm2 ? "token_embd_norm.weight" : "output_norm.weight", kEmbedding);
    if (!lfm2) {
        file.tensor("output.weight", kEmbedding, file.n_vocab(), 0.5F);
    }
    if (kind == TinyKind::quantized) {
        file.quantize_last();
    }
    if (kind == TinyKind::capped) {
        file.real("final_logit_softcapping", 0.5F);
    }
    for (std::int64_t i = 0; i < file.n_layers(); ++i) {
        const std::string layer = "blk." + std::to_string(i) + ".";
        mamba ? add_mamba(file, layer) : lfm2 ? add_lfm2(file, layer, i > 0) : add_attention(file, layer, gemma);
    }
    return file.write(path_in_temp(std::to_string(static_cast<int>(kind))));
}

// A file that goes when this does: for the models, as the process ends.
class Removed {
   public:
    explicit Removed(std::string path) : path_(std::move(path)) {}
    ~Removed() { std::remove(path_.c_str()); }
    Removed(const Removed &) = delete;
    Removed & operator=(const Removed &) = delete;

    const std::string & path() const { return path_; }

   private:
    std::string path_;
};

template <TinyKind kind>
const std::string & path_of() {
    static const Removed file(write_model(kind));
    return file.path();
}

template <TinyKind kind>
llama_model * model_of() {
    static const Model model(llama_model_load_from_file(path_of<kind>().c_str(), llama_model_default_params()));
    return model.get();
}

}  // namespace

std::uint32_t tiny_window(TinyKind kind) {
    switch (kind) {
        case TinyKind::sliding_window:
        case TinyKind::capped: return 8;
        case TinyKind::window_of_16: return 16;
        case TinyKind::window_of_32: return 32;
        default: return 0;
    }
}

llama_model * tiny_model(TinyKind kind) {
    switch (kind) {
        case TinyKind::attention: return model_of<TinyKind::attention>();
        case TinyKind::sliding_window: return model_of<TinyKind::sliding_window>();
        case TinyKind::window_of_16: return model_of<TinyKind::window_of_16>();
        case TinyKind::window_of_32: return model_of<TinyKind::window_of_32>();
        case TinyKind::recurrent: return model_of<TinyKind::recurrent>();
        case TinyKind::hybrid: return model_of<TinyKind::hybrid>();
        case TinyKind::quantized: return model_of<TinyKind::quantized>();
        case TinyKind::diffusion: return model_of<TinyKind::diffusion>();
        case TinyKind::capped: return model_of<TinyKind::capped>();
        case TinyKind::no_tokenizer: return model_of<TinyKind::no_tokenizer>();
        case TinyKind::wide: return model_of<TinyKind::wide>();
        case TinyKind::other_end: return model_of<TinyKind::other_end>();
        case TinyKind::long_word: return model_of<TinyKind::long_word>();
    }
    return nullptr;
}

Tokens bytes(std::string_view text) {
    Tokens out;
    for (const char c : text) {
        out.push_back(3 + static_cast<unsigned char>(c));
    }
    return out;
}

const std::string & tiny_model_path(TinyKind kind) {
    switch (kind) {
        case TinyKind::attention: return path_of<TinyKind::attention>();
        case TinyKind::sliding_window: return path_of<TinyKind::sliding_window>();
        case TinyKind::window_of_16: return path_of<TinyKind::window_of_16>();
        case TinyKind::window_of_32: return path_of<TinyKind::window_of_32>();
        case TinyKind::recurrent: return path_of<TinyKind::recurrent>();
        case TinyKind::hybrid: return path_of<TinyKind::hybrid>();
        case TinyKind::quantized: return path_of<TinyKind::quantized>();
        case TinyKind::diffusion: return path_of<TinyKind::diffusion>();
        case TinyKind::capped: return path_of<TinyKind::capped>();
        case TinyKind::no_tokenizer: return path_of<TinyKind::no_tokenizer>();
        case TinyKind::wide: return path_of<TinyKind::wide>();
        case TinyKind::other_end: return path_of<TinyKind::other_end>();
        case TinyKind::long_word: break;
    }
    return path_of<TinyKind::long_word>();
}

const llama_vocab * tiny_vocab() { return llama_model_get_vocab(tiny_model(TinyKind::attention)); }

llama_context_params tiny_context_params(std::uint32_t n_ctx) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
    params.n_batch = 64;
    params.n_ubatch = 64;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = GGML_TYPE_F32;
    params.type_v = GGML_TYPE_F32;
    return params;
}

std::vector<double> log_probabilities(const float * logits) {
    std::vector<double> out(logits, logits + kTinyVocab);
    const double max = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (const double logit : out) {
        sum += std::exp(logit - max);
    }
    for (double & logit : out) {
        logit -= max + std::log(sum);
    }
    return out;
}

Adapter tiny_adapter(TinyKind kind, const std::string & matrix) {
    ModelFile file(arch_of(kind));
    file.text("general.type", "adapter");
    file.text("adapter.type", "lora");
    file.matrix(matrix + ".lora_a", kEmbedding, kRank);
    file.matrix(matrix + ".lora_b", kRank, matrix == "output.weight" ? kTinyVocab : kEmbedding);
    const Removed written(file.write(path_in_temp("adapter")));
    return Adapter(llama_adapter_lora_init(tiny_model(kind), written.path().c_str()));
}

void set_adapter(llama_context * context, llama_adapter_lora * adapter) {
    float scale = 1;
    llama_set_adapters_lora(context, &adapter, adapter == nullptr ? 0 : 1, &scale);
}

Context tiny_context_of(const llama_context_params & params, TinyKind kind) {
    return Context(llama_init_from_model(tiny_model(kind), params));
}

Context tiny_context(std::uint32_t n_ctx, TinyKind kind, std::uint32_t n_seq_max, std::uint32_t n_batch) {
    llama_context_params params = tiny_context_params(n_ctx);
    params.n_batch = params.n_ubatch = n_batch;
    params.n_seq_max = n_seq_max;
    params.kv_unified = true;
    params.swa_full = true;
    return tiny_context_of(params, kind);
}

ContextMaker maker_of(std::uint32_t n_ctx, TinyKind kind, std::uint32_t n_ids) {
    llama_context_params params = tiny_context_params(n_ctx);
    params.n_batch = params.n_ubatch = n_ids;  // as many ids as a batch has tokens
    return maker_of(params, kind);
}

ContextMaker maker_of(const llama_context_params & params, TinyKind kind) { return {tiny_model(kind), params, {}}; }

}  // namespace token_trie::test
