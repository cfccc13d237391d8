#include "context/output_head.h"
#include "trie/non_copyable.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace token_trie {
namespace {

// Rows multiplied at once.
constexpr std::size_t kRows = 64;
// Outputs of a pass from which on a device, or a library for matrices, may take the product from the CPU.
constexpr std::int64_t kMany = 32;
// Rows cost more one by one than in the whole matrix. Up to this part of a vocabulary they are few.
constexpr std::size_t kPart = 16;

// The head whose pass this thread is in: llama.cpp calls back on the thread that called llama_decode.
thread_local OutputHead * listening = nullptr;

ggml_backend_set_n_threads_t find_set_n_threads(ggml_backend_t backend) {
    return reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(backend)), "ggml_backend_set_n_threads"));
}

bool is_plain_matrix(const ggml_tensor & t) {
    return t.op == GGML_OP_NONE && t.view_src == nullptr && t.buffer != nullptr &&
           ggml_backend_buffer_is_host(t.buffer) && t.ne[2] == 1 && t.ne[3] == 1 && ggml_is_contiguous(&t);
}

// Weights that the CPU has repacked, for AMX and others, are in buffers of its own that nobody else can read.
bool is_computed_by_cpu(ggml_backend_buffer & buffer) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(&buffer));
    return ggml_backend_buffer_is_host(&buffer) ||
           (device != nullptr && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU);
}

}  // namespace

void OutputHead::listen(llama_context_params & params) {
    if (params.cb_eval == nullptr) {
        params.cb_eval = [](ggml_tensor * node, bool ask, void * /*user_data*/) {
            if (listening != nullptr && ask) {
                listening->observe(*node);
                return listening->flatten(*node);
            }
            if (listening != nullptr) {
                listening->unflatten();
            }
            return !ask;  // so that a graph is queried to its end and then computed as a whole
        };
        params.cb_eval_user_data = nullptr;
    }
}

std::int32_t OutputHead::decode(llama_context * context, const llama_batch & batch, bool cut) {
    // However llama.cpp leaves; the graph is its to use again.
    struct Listen : NonCopyable {
        explicit Listen(OutputHead * head) : self(head), before(listening) { listening = head; }
        ~Listen() {
            self->put_back();
            self->unflatten();
            listening = before;
        }

        OutputHead * self;
        OutputHead * before;  // whose pass logs, and a listener has another stream make one
    };
    // A batch that is taken apart has a graph a part, of which only the last would still be there.
    cut_ = cut && may_cut_ && static_cast<std::uint32_t>(batch.n_tokens) <= llama_n_ubatch(context);
    was_cut_ = false;
    norm_ = nullptr;
    const Listen listen(this);
    const std::int32_t result = llama_decode(context, batch);
    if (result == 0 && observes_cache_) {
        observes_cache_ = false;
        cache_bytes_ = 0;
        for (ggml_backend_buffer * buffer : cache_) {
            cache_bytes_ += ggml_backend_buffer_get_size(buffer);
        }
    }
    cache_.clear();
    if (result != 0) {
        norm_ = nullptr;
    }
    if (result == 0 && skipped_ != nullptr) {
        norms_.resize(static_cast<std::size_t>(ggml_nelements(norm_)));
        ggml_backend_tensor_get(norm_, norms_.data(), 0, ggml_nbytes(norm_));
        was_cut_ = true;
    }
    return result;
}

void OutputHead::observe(ggml_tensor & node) {
    if (observes_cache_) {
        for (const ggml_tensor * source : node.src) {
            observe_cache(source);
        }
        observe_weights(node);
        if (std::strcmp(node.name, "result_output") == 0) {
            is_on_device_ = node.buffer != nullptr && !ggml_backend_buffer_is_host(node.buffer);
        }
    }
    if (std::strcmp(node.name, "result_norm") == 0) {
        norm_ = &node;
        return;
    }
    if (!cut_ || norm_ == nullptr) {
        return;
    }
    cut_ = skipped_ == nullptr && can_skip(node);
    if (cut_) {
        node.op = GGML_OP_NONE;
        skipped_ = &node;
    } else {
        put_back();
    }
}

// llama.cpp's memories of all kinds call what they keep so.
void OutputHead::observe_cache(const ggml_tensor * tensor) {
    constexpr std::string_view prefix = "cache_";
    if (tensor == nullptr) {
        return;
    }
    const ggml_tensor * whole = tensor->view_src == nullptr ? tensor : tensor->view_src;
    if (whole->buffer != nullptr && whole->op == GGML_OP_NONE &&
        std::string_view(whole->name).substr(0, prefix.size()) == prefix &&
        std::find(cache_.begin(), cache_.end(), whole->buffer) == cache_.end()) {
        cache_.push_back(whole->buffer);
    }
}

// Weights that llama.cpp copies to a device for a large batch (op_offload) are there in a buffer of the graph's, and
// lie on the host.
void OutputHead::observe_weights(const ggml_tensor & node) {
    if ((node.op != GGML_OP_MUL_MAT && node.op != GGML_OP_MUL_MAT_ID) || node.src[0]->op != GGML_OP_NONE ||
        node.src[0]->buffer == nullptr) {
        return;
    }
    ggml_backend_buffer * buffer = node.src[0]->buffer;
    const ggml_backend_buffer_usage usage = ggml_backend_buffer_get_usage(buffer);
    const bool is_here = is_computed_by_cpu(*buffer) || usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE;
    has_weights_on_host_ = has_weights_on_host_ || is_here;
    has_weights_on_device_ = has_weights_on_device_ || (!is_here && usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

// Whether a node is the product, with so few outputs that no other backend takes it from the CPU: then all nodes after
// it are queried before any is computed.
bool OutputHead::can_skip(const ggml_tensor & node) {
    return node.op == GGML_OP_MUL_MAT && node.src[1] == norm_ && node.type == GGML_TYPE_F32 &&
           norm_->type == GGML_TYPE_F32 && ggml_nrows(norm_) < kMany && ggml_is_contiguous(norm_) &&
           is_plain_matrix(*node.src[0]) && (node.src[0] == matrix_ || prepare(node.src[0])) &&
           std::memcmp(node.op_params, logits_->op_params, sizeof node.op_params) == 0;
}

void OutputHead::put_back() noexcept {
    if (skipped_ != nullptr) {
        skipped_->op = GGML_OP_MUL_MAT;
        skipped_ = nullptr;
    }
}

// llama.cpp's kernel for AMX writes the products of several matrices, as states have them, four times as far apart as
// they belong (llama.cpp 19184, 20824): it adds bytes to a pointer to floats. The rows of all, as one matrix, have the
// same products. True: the node is to be computed before what is made of it is looked at, which expects its sizes.
bool OutputHead::flatten(ggml_tensor & node) noexcept {
    if (node.op != GGML_OP_MUL_MAT || node.ne[2] * node.ne[3] == 1 || node.src[0]->buffer == nullptr ||
        !ggml_is_matrix(node.src[0]) ||
        std::strcmp(ggml_backend_buft_name(ggml_backend_buffer_get_type(node.src[0]->buffer)), "AMX") != 0) {
        return false;
    }
    flat_ = &node;
    std::copy_n(node.ne, sizes_.size(), sizes_.begin());
    node.ne[1] = ggml_nrows(&node);
    node.ne[2] = node.ne[3] = 1;
    return true;
}

void OutputHead::unflatten() noexcept {
    if (flat_ != nullptr) {
        std::copy_n(sizes_.begin(), sizes_.size(), flat_->ne);
        flat_ = nullptr;
    }
}

// False where there is no CPU backend to multiply with.
bool OutputHead::prepare(ggml_tensor * matrix) {
    matrix_ = nullptr;
    if (backend_ == nullptr) {
        backend_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    }
    if (backend_ == nullptr || find_set_n_threads(backend_.get()) == nullptr) {
        return false;
    }
    constexpr std::size_t n_nodes = 4;  // in a graph, with its two inputs
    const auto n_rows = static_cast<std::int64_t>(kRows);
    const std::size_t bytes = 8 * ggml_tensor_overhead() + 2 * ggml_graph_overhead_custom(n_nodes, false) +
                              ggml_row_size(GGML_TYPE_F32, matrix->ne[0] + n_rows) +
                              ggml_row_size(matrix->type, matrix->ne[0]) * kRows;
    context_.reset(ggml_init({bytes, nullptr, false}));
    ggml_context * context = context_.get();
    const auto graph_of = [&](ggml_tensor * node) {
        ggml_cgraph * graph = ggml_new_graph_custom(context, n_nodes, false);
        ggml_build_forward_expand(graph, node);
        return graph;
    };
    norm_row_ = ggml_new_tensor_1d(context, GGML_TYPE_F32, matrix->ne[0]);
    rows_ = ggml_set_zero(ggml_new_tensor_2d(context, matrix->type, matrix->ne[0], n_rows));
    logits_of_rows_ = ggml_mul_mat(context, rows_, norm_row_);
    multiply_rows_ = graph_of(logits_of_rows_);
    ggml_set_no_alloc(context, true);  // as many logits as tokens go where the caller says
    logits_ = ggml_mul_mat(context, matrix, norm_row_);
    multiply_matrix_ = graph_of(logits_);
    matrix_ = matrix;
    return true;
}

bool OutputHead::are_few(const AllowedSet & wanted, std::size_t n_vocab) noexcept {
    return !wanted.everything && wanted.max_size() <= n_vocab / kPart;
}

void OutputHead::multiply(const AllowedSet & wanted, std::int32_t n_threads, float * logits, std::size_t output) {
    const auto width = static_cast<std::size_t>(norm_row_->ne[0]);
    std::copy_n(norms_.data() + output * width, width, static_cast<float *>(norm_row_->data));
    if (!are_few(wanted, static_cast<std::size_t>(matrix_->ne[1]))) {
        logits_->data = logits;
        compute(multiply_matrix_, n_threads);
        return;
    }
    std::array<Token, kRows> tokens{};
    std::size_t n = 0;
    const auto multiply_rows = [&] {
        compute(multiply_rows_, 1);
        for (std::size_t i = 0; i < n; ++i) {
            logits[tokens[i]] = static_cast<const float *>(logits_of_rows_->data)[i];
        }
        n = 0;
    };
    const std::size_t row_bytes = matrix_->nb[1];
    wanted.for_each([&](Token token) {
        std::memcpy(static_cast<char *>(rows_->data) + n * row_bytes,
                    static_cast<const char *>(matrix_->data) + static_cast<std::size_t>(token) * row_bytes, row_bytes);
        tokens[n++] = token;
        if (n == kRows) {
            multiply_rows();
        }
    });
    if (n > 0) {
        multiply_rows();
    }
}

std::vector<float> OutputHead::hidden_state(std::optional<std::size_t> output) const {
    // Others may have taken the place of what is no output.
    throw_if(norm_ == nullptr || norm_->type != GGML_TYPE_F32 || !ggml_is_contiguous(norm_) ||
                 (!was_cut_ && (norm_->flags & GGML_TENSOR_FLAG_OUTPUT) == 0),
             Status::context, "the model's graph has no hidden state that can be read");
    const auto n_rows = static_cast<std::size_t>(ggml_nrows(norm_));
    throw_if(n_rows == 0 || output.value_or(0) >= n_rows, Status::internal, "the pass has no hidden state");
    const auto width = static_cast<std::size_t>(norm_->ne[0]);
    std::vector<float> state(width);
    const std::size_t at = output.value_or(n_rows - 1) * width;
    if (was_cut_) {
        std::copy_n(norms_.data() + at, width, state.data());
    } else {
        ggml_backend_tensor_get(norm_, state.data(), at * sizeof(float), width * sizeof(float));
    }
    return state;
}

void OutputHead::compute(ggml_cgraph * graph, std::int32_t n_threads) {
    find_set_n_threads(backend_.get())(backend_.get(), n_threads);
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), graph);
    throw_if(status != GGML_STATUS_SUCCESS, Status::context,
             "the output matrix could not be multiplied: ", static_cast<int>(status));
}

}  // namespace token_trie
