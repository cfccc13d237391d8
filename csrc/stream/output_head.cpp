#include "stream/output_head.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <array>
#include <cstring>

namespace token_trie {
namespace {

// Rows multiplied at once.
constexpr std::size_t kRows = 64;
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

}  // namespace

void OutputHead::Free::operator()(ggml_backend * backend) const noexcept { ggml_backend_free(backend); }
void OutputHead::Free::operator()(ggml_context * context) const noexcept { ggml_free(context); }

void OutputHead::listen(llama_context_params & params) {
    if (params.cb_eval == nullptr) {
        params.cb_eval = [](ggml_tensor * node, bool ask, void * /*user_data*/) {
            return listening != nullptr && listening->see(node, ask);
        };
        params.cb_eval_user_data = nullptr;
    }
}

std::int32_t OutputHead::decode(llama_context * context, const llama_batch & batch, bool cut) {
    struct Listen {
        explicit Listen(OutputHead * head) { listening = head; }
        ~Listen() { listening = nullptr; }
        Listen(const Listen &) = delete;
        Listen & operator=(const Listen &) = delete;
        Listen(Listen &&) = delete;
        Listen & operator=(Listen &&) = delete;
    };
    cut_ = cut && can_cut_;
    was_cut_ = false;
    norm_ = nullptr;
    last_ = nullptr;
    n_behind_norm_ = 0;
    std::int32_t result = 0;
    {
        const Listen listen(this);
        result = llama_decode(context, batch);
    }
    if (!was_cut_) {
        can_cut_ = result == 0 && learn();
    }
    return result;
}

// Asked first whether a node is of interest, nodes in their order; then called when it has been computed. A refusal
// ends the graph there.
bool OutputHead::see(ggml_tensor * node, bool ask) {
    const bool is_norm = std::strcmp(node->name, "result_norm") == 0;
    if (ask) {
        if (is_norm) {
            norm_ = node;
            n_behind_norm_ = 0;
        } else if (norm_ != nullptr) {
            last_ = node;
            ++n_behind_norm_;
        }
        return cut_ && is_norm;
    }
    // A part of a batch has a row for each token that logits are asked of, so that it may have none.
    if (node->ne[1] > 0) {
        const auto at = static_cast<std::size_t>(node->ne[1] - 1) * node->nb[1];
        ggml_backend_tensor_get(node, norm_row_->data, at, ggml_nbytes(norm_row_));
        was_cut_ = true;
    }
    return false;
}

bool OutputHead::learn() {
    return norm_ != nullptr && n_behind_norm_ == 1 && last_->op == GGML_OP_MUL_MAT && last_->src[1] == norm_ &&
           last_->type == GGML_TYPE_F32 && norm_->type == GGML_TYPE_F32 && norm_->nb[0] == sizeof(float) &&
           is_plain_matrix(*last_->src[0]) && (last_->src[0] == matrix_ || prepare(last_->src[0])) &&
           std::memcmp(last_->op_params, logits_->op_params, sizeof last_->op_params) == 0;
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
    constexpr std::size_t n_nodes = 4;  // of a graph, its two inputs counted
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

bool OutputHead::are_few(const AllowedSet & wanted) const noexcept {
    const std::size_t n = std::size_t{wanted.children.size} + wanted.follow.size;
    return !wanted.everything && n <= static_cast<std::size_t>(matrix_->ne[1]) / kPart;
}

void OutputHead::multiply(const AllowedSet & wanted, std::int32_t n_threads, float * logits) {
    if (!are_few(wanted)) {
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
        return true;
    });
    if (n > 0) {
        multiply_rows();
    }
}

void OutputHead::compute(ggml_cgraph * graph, std::int32_t n_threads) {
    find_set_n_threads(backend_.get())(backend_.get(), n_threads);
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), graph);
    if (status != GGML_STATUS_SUCCESS) {
        throw Error(Status::context, "the output matrix could not be multiplied: " + std::to_string(status));
    }
}

}  // namespace token_trie
