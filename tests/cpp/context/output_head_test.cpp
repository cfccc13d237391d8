#include "context/output_head.h"

#include "context/sequence.h"
#include "tiny_model.h"

namespace token_trie::test {
namespace {

const std::atomic<bool> kNotCancelled{false};
const AllowedSet kAll = {true, {}, {}};

// A sixteenth of the vocabulary: as many as are few.
const Tokens kFew = {0, 2, 3, 17, 64, 65, 66, 100, 101, 102, 103, 200, 258, 259, 261, 262};
Tokens one_more() {
    Tokens out = kFew;
    out.insert(out.begin() + 1, 1);
    return out;
}

AllowedSet set_of(const Tokens & tokens) {
    return {false, {tokens.data(), static_cast<std::uint32_t>(tokens.size())}, {}};
}

std::vector<float> row(const float * logits) { return {logits, logits + kTinyVocab}; }

std::vector<float> some(const Tokens & tokens, const std::vector<float> & logits) {
    std::vector<float> out;
    out.reserve(tokens.size());
    for (const Token token : tokens) {
        out.push_back(logits[static_cast<std::size_t>(token)]);
    }
    return out;
}

// Sequences on two contexts of one model that do the same: the passes of one may be cut, those of the other are whole.
class Pair {
   public:
    // One adapter for both, from here on.
    void set_adapter(llama_adapter_lora * adapter) {
        for (const Sequence * each : {&cut_, &whole_}) {
            test::set_adapter(each->context(), adapter);
        }
    }
    explicit Pair(TinyKind kind) : Pair(maker_of(256, kind), maker_of(256, kind)) {}
    Pair(ContextMaker cut, ContextMaker whole) : cut_(std::move(cut)), whole_(std::move(whole)) {
        whole_.allow_cuts(false);
        whole_.set_device(Sequence::Device::off);
    }

    void replace(const Tokens & tokens) {
        cut_.replace(tokens, kNotCancelled);
        whole_.replace(tokens, kNotCancelled);
    }
    void append(const Tokens & tokens) {
        for (const Token token : tokens) {
            cut_.append(token);
            whole_.append(token);
        }
    }
    std::vector<float> logits(const AllowedSet & wanted, bool step_by_step = false) {
        return row(cut_.logits(wanted, step_by_step, kNotCancelled));
    }
    // The plain path: llama.cpp's own logits, though few are wanted.
    std::vector<float> all(bool step_by_step = false) {
        return row(whole_.logits(set_of(kFew), step_by_step, kNotCancelled));
    }
    const Sequence & cut() const { return cut_; }

   private:
    Sequence cut_;
    Sequence whole_;
};

class OutputHeadTest : public WithTinyModel {};

class OutputHeadOf : public ::testing::TestWithParam<TinyKind> {
    CapturedLog quiet_;
};

TEST_P(OutputHeadOf, LogitsOfAFewTokensAreThoseOfAWholePassBitForBit) {
    Pair pair(GetParam());
    pair.replace(bytes("the answer is"));
    for (const char * text : {"x", "READ", " a batch of more than a few tokens, in one pass", "y", "!"}) {
        SCOPED_TRACE(text);
        pair.append(bytes(text));
        const std::uint64_t before = pair.cut().n_passes();
        const std::vector<float> logits = pair.logits(set_of(kFew));
        const std::vector<float> all = pair.all();
        EXPECT_EQ(some(kFew, logits), some(kFew, all));
        // An old llama.cpp has another name for the end of a hybrid's graph, and its passes stay whole.
        if (GetParam() != TinyKind::hybrid) {
            EXPECT_NE(logits, all) << "of others, nobody asked";
        }
        EXPECT_EQ(pair.cut().n_passes() - before, 1U);
    }
    // The cache is as after a whole pass.
    pair.append(bytes("and on"));
    EXPECT_EQ(pair.logits(kAll), pair.all());
    pair.replace(bytes("the answer is not"));
    EXPECT_EQ(pair.logits(kAll), pair.all());
}

TEST_P(OutputHeadOf, OtherLogitsAreToBeHadWithoutAnotherPass) {
    Pair pair(GetParam());
    pair.replace(bytes("the answer is"));
    pair.append(bytes("READ"));
    const std::vector<float> all = pair.all();
    const std::uint64_t before = pair.cut().n_passes();
    const Tokens others = {1, 4, 259};
    const Tokens none;
    EXPECT_EQ(some(kFew, pair.logits(set_of(kFew))), some(kFew, all));
    EXPECT_EQ(some(others, pair.logits(set_of(others))), some(others, all));
    EXPECT_EQ(some(kFew, pair.logits({false, set_of(kFew).children, set_of(others).children})), some(kFew, all));
    EXPECT_EQ(pair.logits(kAll), all);
    EXPECT_EQ(some(others, pair.logits(set_of(others))), some(others, all));
    EXPECT_EQ(pair.logits(set_of(one_more())), all);
    static_cast<void>(pair.logits(set_of(none)));
    EXPECT_EQ(pair.cut().n_passes() - before, 1U);
    pair.append(bytes("z"));
    EXPECT_EQ(pair.logits(kAll), pair.all());
}

std::string name_of(const ::testing::TestParamInfo<TinyKind> & info) {
    return info.param == TinyKind::attention        ? "Attention"
           : info.param == TinyKind::recurrent      ? "Recurrence"
           : info.param == TinyKind::hybrid         ? "BothInTurn"
           : info.param == TinyKind::sliding_window ? "ASlidingWindow"
                                                    : "AQuantizedMatrix";
}

INSTANTIATE_TEST_SUITE_P(AModelWith,
                         OutputHeadOf,
                         ::testing::Values(TinyKind::attention,
                                           TinyKind::sliding_window,
                                           TinyKind::recurrent,
                                           TinyKind::hybrid,
                                           TinyKind::quantized),
                         name_of);

// A pass that is not cut leaves all logits right, also those that nobody asked for.
TEST_F(OutputHeadTest, ManyTokensOrStepsAreAWholePass) {
    Pair pair(TinyKind::attention);
    pair.replace(bytes("the answer is"));
    pair.append(bytes("ab"));
    EXPECT_EQ(pair.logits(set_of(one_more())), pair.all());
    pair.append(bytes("cd"));
    EXPECT_EQ(pair.logits(set_of(kFew), true), pair.all(true));
}

TEST_F(OutputHeadTest, AGraphThatGoesOnBehindTheMatrixIsNeverCut) {
    Pair pair(TinyKind::capped);
    pair.replace(bytes("the answer is"));
    pair.append(bytes("ab"));
    EXPECT_EQ(some(kFew, pair.logits(set_of(kFew))), some(kFew, pair.all()));
}

// Compares the logits of a few tokens under an adapter, set between passes that are cut, and without it again.
void expect_adapter_heard(TinyKind kind, const std::string & matrix) {
    SCOPED_TRACE(static_cast<int>(kind));
    const Adapter adapter = tiny_adapter(kind, matrix);
    ASSERT_NE(adapter, nullptr);
    Pair pair(kind);
    pair.replace(bytes("the answer is"));
    for (llama_adapter_lora * set : {static_cast<llama_adapter_lora *>(nullptr), adapter.get(), adapter.get(),
                                     static_cast<llama_adapter_lora *>(nullptr)}) {
        pair.set_adapter(set);
        pair.append(bytes("ab"));
        EXPECT_EQ(some(kFew, pair.logits(set_of(kFew))), some(kFew, pair.all()));
    }
}

TEST_F(OutputHeadTest, AnAdapterOnTheOutputMatrixIsHeardFromTheNextPassOn) {
    for (const TinyKind kind :
         {TinyKind::attention, TinyKind::sliding_window, TinyKind::recurrent, TinyKind::quantized}) {
        expect_adapter_heard(kind, "output.weight");
    }
}

TEST_F(OutputHeadTest, AnAdapterOnALayerIsHeardFromTheNextPassOn) {
    for (const TinyKind kind : {TinyKind::attention, TinyKind::sliding_window, TinyKind::hybrid, TinyKind::quantized}) {
        expect_adapter_heard(kind, "blk.1.attn_q.weight");
    }
}

// A cb_eval of the caller's own, which sees how many threads a batch has.
struct Watch {
    llama_context * context = nullptr;
    std::int32_t n_threads = 0;

    static bool see(ggml_tensor * /*node*/, bool /*ask*/, void * user) {
        auto & self = *static_cast<Watch *>(user);
        self.n_threads = self.context == nullptr ? 0 : llama_n_threads_batch(self.context);
        return false;
    }
};

TEST_F(OutputHeadTest, ACallbackOfTheCallersStaysAndPassesAreWhole) {
    Watch watch;
    llama_context_params params = tiny_context_params();
    params.cb_eval = Watch::see;
    params.cb_eval_user_data = &watch;
    Pair pair(maker_of(params), maker_of());
    watch.context = pair.cut().context();
    pair.replace(bytes("the answer is"));
    pair.append(bytes("ab"));
    EXPECT_EQ(pair.logits(set_of(kFew)), pair.all());
    EXPECT_EQ(watch.n_threads, 1) << "called";
}

// Nobody then puts its products for AMX right.
TEST_F(OutputHeadTest, APassThatACallbackOfTheCallersWatchesIsOfOneSequenceWithStates) {
    llama_context_params params = tiny_context_params();
    EXPECT_FALSE(maker_of(params, TinyKind::hybrid).takes_one_at_a_time());
    params.cb_eval = [](ggml_tensor * /*node*/, bool /*ask*/, void * /*user*/) { return false; };
    EXPECT_TRUE(maker_of(params, TinyKind::hybrid).takes_one_at_a_time());
}

TEST_F(OutputHeadTest, ABatchOfAFewTokensTakesTheThreadsOfOneToken) {
    Watch watch;
    llama_context_params params = tiny_context_params();
    params.n_threads_batch = 2;
    params.cb_eval = Watch::see;
    params.cb_eval_user_data = &watch;
    Sequence sequence(maker_of(params));
    watch.context = sequence.context();
    sequence.replace(bytes(std::string(33, 'x')), kNotCancelled);
    EXPECT_EQ(watch.n_threads, 2);
    for (int i = 0; i < 32; ++i) {
        sequence.append(kRead);
    }
    static_cast<void>(sequence.logits(kAll, false, kNotCancelled));
    EXPECT_EQ(watch.n_threads, 1);
}

}  // namespace
}  // namespace token_trie::test
