#include "context/contexts.h"

#include "context/cell_table.h"
#include "llama/library.h"
#include "llama/model.h"

#include <ggml-backend.h>

#include <cstdlib>
#include <fstream>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

// How far a context of a file's model may go beyond what it was trained with: further than any way to stretch one, and
// short of what llama.cpp takes minutes to prepare, or the system promises and does not have.
constexpr std::int64_t kStretch = 16;
// Sizes of contexts are multiples of this, as in llama.cpp, which attends to as many cells at once: so the same
// tokens give the same logits in a context of any size.
constexpr std::size_t kCells = 256;
// A context keeps logits for each of its sequence ids. They are added so many at a time.
constexpr std::size_t kIds = 4;

constexpr std::size_t round_up(std::size_t n) { return (n + kCells - 1) / kCells * kCells; }

// Sequence ids for a TreeEvaluator to work well with: enough for a batch to be worth it, and not more, as every pass
// compares them in pairs and the context keeps logits for each. llama.cpp ends the process on more than a batch has
// tokens.
std::uint32_t n_ids_for(const llama_model * model, const llama_context_params & params) {
    constexpr std::size_t logits_bytes = 64U << 20U;
    const auto row_bytes = sizeof(float) * static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    const auto n_ctx = params.n_ctx == 0 ? static_cast<std::size_t>(llama_model_n_ctx_train(model)) : params.n_ctx;
    const auto n = std::min<std::size_t>({64, logits_bytes / row_bytes, params.n_batch, n_ctx});
    return static_cast<std::uint32_t>(std::max<std::size_t>(n, 1));
}

// A state that was rolled back is not one to fork. Older llama.cpp cannot.
template <typename Params>
auto without_rollback(Params & params, int /*first*/) -> decltype(void(params.n_rs_seq)) {
    params.n_rs_seq = 0;
}
template <typename Params>
void without_rollback(Params & /*params*/, long /*otherwise*/) {}

void check_length(const llama_model * model, std::int32_t n_ctx) {
    const std::int32_t trained = llama_model_n_ctx_train(model);
    throw_if(n_ctx > kStretch * trained, Status::argument, "n_ctx: ", n_ctx, " is more than ", kStretch, " times the ",
             trained, " tokens that the model was trained with");
}

// Copies what a context's memory holds of all sequences. The state of an empty one is none to go on from: llama.cpp may
// end the process on it.
bool copy_state(llama_context * from, llama_context * to) noexcept {
    try {
        std::vector<std::uint8_t> bytes(llama_state_get_size(from));
        return !bytes.empty() && llama_state_get_data(from, bytes.data(), bytes.size()) == bytes.size() &&
               llama_state_set_data(to, bytes.data(), bytes.size()) == bytes.size();
    } catch (...) {  // no memory
        return false;
    }
}

}  // namespace

std::size_t turning_point(const llama_model * model) {
    const std::string type = of_architecture(model, ".rope.scaling.type");
    const std::string trained_for = of_architecture(model, ".rope.scaling.original_context_length");
    if (type == "yarn" || type == "linear" || (type != "longrope" && trained_for.empty())) {
        return 0;
    }
    return trained_for.empty() ? static_cast<std::size_t>(llama_model_n_ctx_train(model))
                               : std::strtoul(trained_for.c_str(), nullptr, 10);
}

std::size_t n_frugal_ids(const llama_vocab * vocab) {
    constexpr std::size_t bytes = 32U << 20U;
    constexpr std::size_t min = 4;
    return std::max(min, bytes / (sizeof(float) * static_cast<std::size_t>(llama_vocab_n_tokens(vocab))));
}

void check_fits(std::size_t n_tokens, std::size_t n_ctx) {
    throw_if(n_tokens > n_ctx, Status::context, n_tokens, " tokens do not fit the context of ", n_ctx);
}

void check_decoded(std::int32_t result) {
    if (result != 0) {
        throw Error(Status::context,
                    result == 1 ? "the context is full" : "llama_decode failed with " + std::to_string(result));
    }
}

void check_threads(std::int32_t n_threads, const std::string & what) {
    throw_if(n_threads > GGML_MAX_N_THREADS, Status::argument, what, ": ", n_threads, " is above ", GGML_MAX_N_THREADS);
}

ContextMaker::ContextMaker(llama_model * model,
                           const llama_context_params & params,
                           Adapters adapters,
                           std::size_t max_state_bytes)
    : model_(model), params_(params), adapters_(std::move(adapters)) {
    prepare(max_state_bytes);
}

ContextMaker::ContextMaker(const std::string & gguf_path, const FileOptions & options) {
    require_same_llama();
    check_threads(options.n_threads, "n_threads");
    ggml_backend_load_all();
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = options.n_gpu_layers < 0 ? 9999 : options.n_gpu_layers;
    // Without layers, no devices at all: llama.cpp would send them large batches, and leave flash attention for that.
    ggml_backend_dev_t no_devices[] = {nullptr};
    if (options.n_gpu_layers == 0) {
        model_params.devices = no_devices;
    }
    owned_model_.reset(llama_model_load_from_file(gguf_path.c_str(), model_params));
    if (!owned_model_) {
        throw Error(Status::argument, "gguf_path: ", quote(gguf_path, kMaxPathBytes),
                    std::ifstream(gguf_path) ? " could not be loaded as a model" : " cannot be opened");
    }
    model_ = owned_model_.get();
    check_length(model_, options.n_ctx);
    params_ = llama_context_default_params();
    params_.n_ctx = static_cast<std::uint32_t>(options.n_ctx);
    if (options.n_batch > 0) {
        params_.n_batch = static_cast<std::uint32_t>(options.n_batch);
    }
    if (options.n_threads > 0) {
        params_.n_threads = options.n_threads;
        params_.n_threads_batch = options.n_threads;
    }
    prepare(options.max_state_bytes);
}

void ContextMaker::prepare(std::size_t max_state_bytes) {
    require_same_llama();
    check_model(model_);
    check_threads(params_.n_threads, "n_threads");
    check_threads(params_.n_threads_batch, "n_threads_batch");
    max_tokens_ =
        round_up(params_.n_ctx == 0 ? static_cast<std::size_t>(llama_model_n_ctx_train(model_)) : params_.n_ctx);
    params_.n_ctx = static_cast<std::uint32_t>(max_tokens_);
    params_.embeddings = false;
    params_.attention_type = LLAMA_ATTENTION_TYPE_CAUSAL;
    params_.kv_unified = true;
    params_.swa_full = true;
    without_rollback(params_, 0);
    params_.samplers = nullptr;
    params_.n_samplers = 0;
    const bool has_states = token_trie::has_states(model_);
    if (has_states) {
        params_.n_batch = std::max<std::uint32_t>(params_.n_batch, kMinIds);
    }
    max_ids_ = n_ids_for(model_, params_);
    OutputHead::listen(params_);
    const std::size_t turn = turning_point(model_);
    min_tokens_ = turn > 0 && max_tokens_ > turn ? turn + 1 : 0;
    if (has_states) {
        prepare_states(max_state_bytes == 0 ? kMaxStateBytes : max_state_bytes);
    }
}

// By a pass of one token, as llama.cpp tells the bytes of a state only where there is one. PLaMo 2 mixes sequences with
// their tokens; a pass that is reported elsewhere may be one for AMX.
void ContextMaker::prepare_states(std::size_t max_state_bytes) {
    first_ = make(1, 1);
    throw_if(first_ == nullptr, Status::argument, "no context could be made of the model and the params");
    OutputHead head;
    Token token = 0;
    check_decoded(head.decode(first_.get(), llama_batch_get_one(&token, 1), /* cut = */ false));
    state_bytes_ = std::max<std::size_t>(llama_state_seq_get_size(first_.get(), 0), 1);
    llama_memory_clear(llama_get_memory(first_.get()), true);
    const std::size_t n_most = std::min(max_ids_, n_frugal_ids(llama_model_get_vocab(model_)));
    max_ids_ = std::clamp(max_state_bytes / state_bytes_, std::min(kMinIds, n_most), n_most);
    takes_one_at_a_time_ = head.cache_bytes() == 0 || metadata(model_, "general.architecture") == "plamo2";
}

OwnedContext ContextMaker::make(std::size_t n_tokens, std::size_t n_ids) const {
    llama_context_params params = params_;
    params.n_ctx = static_cast<std::uint32_t>(std::min(round_up(std::max(n_tokens, min_tokens_)), max_tokens_));
    params.n_seq_max = static_cast<std::uint32_t>(std::min(n_ids, max_ids_));
    params.n_outputs_max = params.n_seq_max;
    OwnedContext context(llama_init_from_model(model_, params));
    throw_if(context != nullptr && llama_get_memory(context.get()) == nullptr, Status::argument,
             "model: its contexts have no memory for a sequence");
    if (Adapters given = adapters_; context != nullptr && !given.adapters.empty()) {
        throw_if(llama_set_adapters_lora(context.get(), given.adapters.data(), given.adapters.size(),
                                         given.scales.data()) != 0,
                 Status::argument, "adapters: they do not fit the model");
    }
    return context;
}

OwnedContext ContextMaker::take_first() {
    constexpr std::size_t n_ids = 16;
    return first_ != nullptr ? std::move(first_)
                             : make(1, std::min(n_ids, n_frugal_ids(llama_model_get_vocab(model_))));
}

GrowingContext::GrowingContext(ContextMaker maker) : maker_(std::move(maker)) {
    OwnedContext first = maker_.take_first();
    throw_if(first == nullptr, Status::argument, "no context could be made of the model and the params");
    adopt(std::move(first));
}

GrowingContext::GrowingContext(ContextMaker maker, std::size_t n_tokens, std::size_t n_ids) : maker_(std::move(maker)) {
    maker_.forget_first();
    OwnedContext first = maker_.make(n_tokens, n_ids);
    throw_if(first == nullptr, Status::memory, "no context of ", n_tokens, " tokens could be made");
    adopt(std::move(first));
}

void GrowingContext::adopt(OwnedContext context) {
    owned_ = std::move(context);
    context_ = owned_.get();
    memory_ = llama_get_memory(context_);
    n_vocab_ = static_cast<std::size_t>(llama_vocab_n_tokens(vocab()));
    n_swa_ = llama_model_n_swa(model());
    n_threads_ = llama_n_threads(context_);
    n_threads_batch_ = llama_n_threads_batch(context_);
    has_threads_of_step_ = false;
    head_.expect_another();
}

bool GrowingContext::is_empty() const noexcept {
    for (llama_seq_id id = 0; static_cast<std::size_t>(id) < n_ids(); ++id) {
        if (llama_memory_seq_pos_max(memory_, id) >= 0) {
            return false;
        }
    }
    return true;
}

// With states, it has at once as many ids as there may be, as each is of use for a snapshot.
void GrowingContext::grow(std::size_t n_tokens, std::size_t n_ids) {
    if (has(n_tokens, n_ids)) {
        return;
    }
    const std::size_t n_here = n_ctx();
    const bool is_empty = this->is_empty();
    const std::size_t n_next = n_tokens <= n_here ? n_here
                               : is_empty         ? n_tokens
                                                  : std::max(n_tokens, n_here + n_here / 2);
    OwnedContext next = maker_.make(n_next, n_ids <= this->n_ids() ? this->n_ids()
                                            : has_states(model())  ? n_ids_max()
                                                                   : (n_ids + kIds - 1) / kIds * kIds);
    throw_if(next == nullptr || (!is_empty && !copy_state(context_, next.get())), Status::memory, "no context of ",
             n_next, " tokens could be made");
    adopt(std::move(next));
}

std::int32_t GrowingContext::decode(const llama_batch & batch, bool is_step, bool cut) {
    return decode_by(is_step, [&] { return head_.decode(context_, batch, cut); });
}

// Not for each pass and back: llama.cpp logs a change, and what listens may be slow, or Python.
void GrowingContext::take_threads(bool of_step) {
    if (of_step != has_threads_of_step_ && n_threads_ < n_threads_batch_) {
        llama_set_n_threads(context_, n_threads_, of_step ? n_threads_ : n_threads_batch_);
        has_threads_of_step_ = of_step;
    }
}

}  // namespace token_trie
