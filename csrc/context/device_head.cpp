#include "context/device_head.h"

#include "context/cell_table.h"
#include "context/contexts.h"
#include "llama/runs_in_graph.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace token_trie {
namespace {

constexpr std::size_t kMinWidth = 16;

std::size_t width_for(std::size_t n) {
    std::size_t width = kMinWidth;
    while (width < n) {
        width *= 2;
    }
    return width;
}

ggml_tensor * as_rows(ggml_context * context, ggml_tensor * tensor) {
    return ggml_reshape_2d(context, tensor, 1, ggml_nelements(tensor));
}
ggml_tensor * as_row(ggml_context * context, ggml_tensor * tensor) {
    return ggml_reshape_1d(context, tensor, ggml_nelements(tensor));
}

}  // namespace

// The sampler, in the graph and beside it.
struct DeviceHead::Part {
    std::size_t width;
    Want want;
    std::int32_t n_vocab;
    bool is_in_graph = false;
    const AllowedSet * wanted = nullptr;  // in the pass under way
    // NOLINTNEXTLINE(readability-redundant-member-init): for callers that name only the first members
    std::vector<float> numbers{};   // ids, from the last one down, then biases
    ggml_tensor * input = nullptr;  // these, of the graph it was last applied in

    template <typename Data>
    void apply(ggml_context * context, Data & data) {
        const auto n = static_cast<std::int64_t>(width);
        input = ggml_new_tensor_1d(context, GGML_TYPE_F32, 2 * n);
        ggml_set_name(input, "token_trie");
        ggml_set_input(input);
        ggml_tensor * here = ggml_cont(context, input);
        ggml_tensor * ids = ggml_cast(context, ggml_view_1d(context, here, n, 0), GGML_TYPE_I32);
        ggml_tensor * bias = ggml_view_1d(context, here, n, width * sizeof(float));
        ggml_tensor * logits =
            ggml_add(context, as_row(context, ggml_get_rows(context, as_rows(context, data.logits), ids)), bias);
        data.probs = data.candidates = nullptr;
        if (want == Want::logits) {
            data.logits = logits;
            return;
        }
        ggml_tensor * best = ggml_argmax(context, logits);
        data.sampled = ggml_get_rows(context, as_rows(context, ids), best);
        data.logits = ggml_get_rows(context, as_rows(context, ggml_soft_max(context, logits)), best);
    }

    void set_input() noexcept {
        if (input == nullptr || input->buffer == nullptr) {
            return;
        }
        // From the last one down: of equals, the CPU's argmax takes the last, and so the first there is.
        std::size_t at = width;
        if (wanted != nullptr) {
            wanted->for_each([&](Token token) {
                numbers[--at] = static_cast<float>(token);
                return at > 0;
            });
        }
        std::fill(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(at), at < width ? numbers[at] : 0);
        const auto bias = numbers.begin() + static_cast<std::ptrdiff_t>(width);
        std::fill(bias, bias + static_cast<std::ptrdiff_t>(at), -std::numeric_limits<float>::infinity());
        std::fill(bias + static_cast<std::ptrdiff_t>(at), numbers.end(), 0.0F);
        ggml_backend_tensor_set(input, numbers.data(), 0, numbers.size() * sizeof(float));
    }

    // Whether the device of these buffers has every operation.
    bool is_supported(ggml_backend_buffer_type_t buffers) {
        ggml_backend_dev_t device = ggml_backend_buft_get_device(buffers);
        if (device == nullptr) {
            return true;  // the CPU
        }
        struct Free {
            void operator()(ggml_context * context) const noexcept { ggml_free(context); }
        };
        constexpr std::size_t n_tensors = 32;
        const std::unique_ptr<ggml_context, Free> context(
            ggml_init({n_tensors * ggml_tensor_overhead(), nullptr, /* no_alloc = */ true}));
        if (context == nullptr) {
            return false;
        }
        struct Data {
            ggml_tensor *logits, *probs, *sampled, *candidates;
        };
        Data data{ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, n_vocab), nullptr, nullptr, nullptr};
        apply(context.get(), data);
        for (ggml_tensor * each = ggml_get_first_tensor(context.get()); each != nullptr;
             each = ggml_get_next_tensor(context.get(), each)) {
            if (each->op != GGML_OP_NONE && !ggml_backend_dev_supports_op(device, each)) {
                return false;
            }
        }
        return true;
    }

    static Part & of(llama_sampler * smpl) { return *static_cast<Part *>(smpl->ctx); }

    template <typename Interface>
    static void run_in_graph(Interface & iface) {
        if constexpr (RunsInGraph<Interface>::value) {
            iface.backend_init = [](llama_sampler * smpl, ggml_backend_buffer_type_t buffers,
                                    std::uint32_t /*n_outputs*/) {
                return of(smpl).is_in_graph = of(smpl).is_supported(buffers);
            };
            iface.backend_apply = [](llama_sampler * smpl, ggml_context * graph, ggml_cgraph * /*gf*/, auto * data) {
                of(smpl).apply(graph, *data);
            };
            iface.backend_set_input = [](llama_sampler * smpl) { of(smpl).set_input(); };
            iface.backend_reset = [](llama_sampler * smpl) { of(smpl).input = nullptr; };
        }
    }

    static llama_sampler_i * interface() {
        static llama_sampler_i shared = [] {
            llama_sampler_i out{};
            out.name = [](const llama_sampler * /*smpl*/) { return "token-trie-head"; };
            out.apply = [](llama_sampler * /*smpl*/, llama_token_data_array * /*cur_p*/) {};
            out.free = [](llama_sampler * smpl) { delete static_cast<Part *>(smpl->ctx); };
            run_in_graph(out);
            return out;
        }();
        return &shared;
    }
};

bool DeviceHead::prepare(llama_context * context, std::size_t n_taken, const AllowedSet & wanted, Want want) {
    if (!RunsInGraph<llama_sampler_i>::value || is_refused_ || llama_n_seq_max(context) <= n_taken ||
        has_states(llama_get_model(context))) {
        return false;
    }
    const std::size_t n = wanted.max_size();
    if (context != context_ || part_ == nullptr || part_->want != want || part_->width < n) {
        detach();
        context_ = context;
        here_ = static_cast<llama_seq_id>(llama_n_seq_max(context)) - 1;
        ids_ = {here_};
        attach(width_for(n), want);
    }
    return !is_refused_;
}

void DeviceHead::attach(std::size_t width, Want want) {
    const std::int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context_)));
    auto part = std::make_unique<Part>(Part{width, want, n_vocab});
    part->numbers.resize(2 * width);
    Part * attached = part.get();
    chain_.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler * member = llama_sampler_init(Part::interface(), attached);
    static_cast<void>(part.release());
    llama_sampler_chain_add(chain_.get(), member);
    is_refused_ = !llama_set_sampler(context_, here_, chain_.get()) || !attached->is_in_graph;
    part_ = attached;
    if (is_refused_) {
        detach();
    }
}

void DeviceHead::detach() noexcept {
    if (part_ != nullptr) {
        llama_set_sampler(context_, here_, nullptr);
    }
    part_ = nullptr;
    chain_.reset();
    context_ = nullptr;
}

std::int32_t DeviceHead::decode(const Token * tokens, std::size_t n, std::size_t n_cached, const AllowedSet & wanted) {
    const auto first = static_cast<llama_pos>(n_cached);
    rows_.clear(n, 1);
    for (std::size_t i = 0; i < n; ++i) {
        rows_.add(tokens[i], first + static_cast<llama_pos>(i), ids_, i + 1 == n);
    }
    llama_memory_t memory = llama_get_memory(context_);
    llama_memory_seq_cp(memory, 0, here_, -1, -1);
    part_->wanted = &wanted;
    std::int32_t result = -1;
    try {
        result = llama_decode(context_, rows_.batch());
    } catch (...) {
        part_->wanted = nullptr;
        llama_memory_seq_rm(memory, here_, -1, -1);
        throw;
    }
    part_->wanted = nullptr;
    if (result == 0) {
        llama_memory_seq_cp(memory, here_, 0, first, -1);
        ++n_passes_;
    }
    llama_memory_seq_rm(memory, here_, -1, -1);
    return result;
}

const float * DeviceHead::fetch(const AllowedSet & wanted) {
    const float * row = llama_get_sampled_logits_ith(context_, -1);
    throw_if(row == nullptr, Status::context, "the context gives no logits");
    logits_.resize(static_cast<std::size_t>(part_->n_vocab));
    std::size_t at = part_->width;
    wanted.for_each([&](Token token) { logits_[static_cast<std::size_t>(token)] = row[--at]; });
    return logits_.data();
}

DeviceHead::Best DeviceHead::best() const {
    const Token token = llama_get_sampled_token_ith(context_, -1);
    const float * share = llama_get_sampled_logits_ith(context_, -1);
    throw_if(token < 0 || share == nullptr, Status::context, "the context gives no token");
    return {token, std::log(*share)};
}

}  // namespace token_trie
