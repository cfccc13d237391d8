#include "stream/shared_stream.h"

#include "tiny_model.h"

#include <atomic>

namespace token_trie::test {
namespace {

const Tokens kPrompt = bytes("Do: ");

class SharedStreamTest : public WithTinyModel {
   protected:
    using Call = SharedStream::Call;

    SharedStreamTest() {
        const Call call(stream_);
        call->prefill(kPrompt);
        set(call);
    }
    // A list without an end, which nothing but a full context would stop.
    static void set(const Call & call) {
        auto trie = trie_of({{"A", {kRead}}, {"B", {kSend}}});
        auto follow =
            std::make_shared<const FollowSet>(*trie, FollowSet::Options{OnComplete::restart, bytes("\n"), {}, 0});
        call->set_trie(Cursor(std::move(trie), std::move(follow)), Mode::greedy);
    }
    static Stop generate(const Call & call, const Stream::OnStep & on_step = [](const auto &) { return true; }) {
        return call->generate(200, on_step);
    }
    static std::shared_ptr<SharedStream> open(std::unique_ptr<Sequence> sequence) {
        return std::make_shared<SharedStream>(std::make_unique<Stream>(std::move(sequence), Stream::Options{}));
    }
    void expect_busy() const {
        EXPECT_EQ(status_of([&] { const Call call(stream_); }), Status::busy);
    }
    void expect_closed() const {
        EXPECT_EQ(message_of([&] { const Call call(stream_); }), "stream: closed");
    }

    std::unique_ptr<Sequence> sequence_ = std::make_unique<Sequence>(maker_of());
    llama_context * const context_ = sequence_->context();
    std::shared_ptr<SharedStream> stream_ = open(std::move(sequence_));
};

TEST_F(SharedStreamTest, WhileACallIsUnderWayEveryOtherIsRefused) {
    const Call call(stream_);
    expect_busy();
    std::thread([&] { expect_busy(); }).join();
}

TEST_F(SharedStreamTest, ACallFromTheCallbackIsRefusedAndChangesNothing) {
    std::size_t n_steps = 0;
    const Call call(stream_);
    call->generate(3, [&](const Stream::Step & /*step*/) {
        expect_busy();
        std::thread([&] { expect_busy(); }).join();
        ++n_steps;
        return true;
    });
    EXPECT_EQ(n_steps, 3U);
}

TEST_F(SharedStreamTest, WhoAsksWhereItStandsKeepsNobodyOut) {
    std::atomic<bool> over{false};
    std::thread asking([&] {
        while (!over) {
            static_cast<void>(status_of([&] { static_cast<void>(stream_->state()); }));
        }
    });
    for (int i = 0; i < 10'000; ++i) {
        ASSERT_EQ(status_of([&] { const Call call(stream_); }), Status::ok) << i;
    }
    over = true;
    asking.join();
    const Call call(stream_);
    EXPECT_EQ(status_of([&] { static_cast<void>(stream_->state()); }), Status::busy);
}

TEST_F(SharedStreamTest, CancelWithoutACallDoesNothing) {
    stream_->cancel();
    const Call call(stream_);
    call->prefill(bytes("another prompt"));
    EXPECT_NE(generate(call), Stop::cancelled);
}

TEST_F(SharedStreamTest, CancelStandsFromTheMomentThatACallBegins) {
    const Call call(stream_);
    std::thread([&] { stream_->cancel(); }).join();
    EXPECT_EQ(generate(call), Stop::cancelled);
    EXPECT_EQ(status_of([&] { call->prefill(bytes("another")); }), Status::cancelled);
    const auto snapshot = call->state();
    EXPECT_EQ(snapshot.n_tokens, kPrompt.size());
    Query query;
    query.cursor = std::make_shared<const Cursor>(cursor_in(call->cursor()));
    for (const Query::Mode mode : {Query::Mode::best, Query::Mode::scores}) {
        query.mode = mode;
        EXPECT_EQ(status_of([&] { static_cast<void>(call->answer(query)); }), Status::cancelled);
    }
}

TEST_F(SharedStreamTest, CancelFromAnotherThreadStopsWhateverRuns) {
    std::atomic<bool> begun{false};
    std::atomic<bool> cancelled{false};
    std::thread other([&] {
        while (!begun) {
            std::this_thread::yield();
        }
        stream_->cancel();
        cancelled = true;
    });
    const Call call(stream_);
    EXPECT_EQ(generate(call,
                       [&](const Stream::Step & /*step*/) {
                           begun = true;
                           while (!cancelled) {
                               std::this_thread::yield();
                           }
                           return true;
                       }),
              Stop::cancelled);
    other.join();
}

TEST_F(SharedStreamTest, AfterCloseEveryCallIsRefusedAndMoreClosesDoNothing) {
    stream_->close();
    EXPECT_TRUE(stream_->is_gone());
    stream_->close();
    stream_->cancel();
    expect_closed();
}

TEST_F(SharedStreamTest, CloseFromSeveralThreadsCancelsTheCallAndAllWaitForIt) {
    std::atomic<bool> begun{false};
    std::atomic<bool> over{false};
    std::thread worker([&] {
        const Call call(stream_);
        Stop stop = Stop::none;
        while (stop != Stop::cancelled) {
            try {
                call->prefill(kPrompt);
                stop = generate(call, [&](const Stream::Step & /*step*/) { return begun = true; });
            } catch (const Error & error) {
                EXPECT_EQ(error.status(), Status::cancelled) << "of a prefill";
                stop = Stop::cancelled;
            }
        }
        over = true;
    });
    while (!begun) {
        std::this_thread::yield();
    }
    const auto close = [&] {
        stream_->close();
        EXPECT_TRUE(over);
        EXPECT_TRUE(stream_->is_gone());
    };
    std::thread one(close);
    std::thread two(close);
    one.join();
    two.join();
    worker.join();
}

TEST_F(SharedStreamTest, CloseFromItsOwnCallbackFreesWhenTheCallReturns) {
    {
        const Call call(stream_);
        EXPECT_EQ(generate(call,
                           [&](const Stream::Step & /*step*/) {
                               stream_->close();
                               EXPECT_FALSE(stream_->is_gone());
                               expect_closed();
                               return true;
                           }),
                  Stop::cancelled);
    }
    EXPECT_TRUE(stream_->is_gone());
}

// llama.cpp calls back from within a prefill, on the thread that is in it: here about the change of its threads.
TEST_F(SharedStreamTest, CloseFromALogCallbackFreesWhenTheCallReturns) {
    llama_context_params params = tiny_context_params();
    params.n_threads = 1;
    params.n_threads_batch = 2;
    struct Closing {
        std::shared_ptr<SharedStream> stream;
        int n_lines = 0;
    } closing{open(std::make_unique<Sequence>(maker_of(params)))};
    llama_log_set(
        [](ggml_log_level /*level*/, const char * /*text*/, void * user_data) {
            auto & self = *static_cast<Closing *>(user_data);
            ++self.n_lines;
            self.stream->close();
        },
        &closing);
    {
        const Call call(closing.stream);
        const Tokens prompt(100, kRead);
        status_of([&] { call->prefill(prompt); });
        status_of([&] { static_cast<void>(call->generate(2, [](const auto &) { return true; })); });
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    EXPECT_GT(closing.n_lines, 0);
    EXPECT_TRUE(closing.stream->is_gone());
}

// Here about the graph, which an adapter changes.
TEST_F(SharedStreamTest, AnotherStreamMayBeCalledFromALogCallbackInsideAPass) {
    struct Asking {
        std::shared_ptr<SharedStream> stream;
        bool is_inside = false;
        int n_calls = 0;
    } asking{open(std::make_unique<Sequence>(maker_of()))};
    const Adapter adapter = tiny_adapter(TinyKind::attention, "output.weight");
    llama_adapter_lora * adapters[] = {adapter.get()};
    float scales[] = {1};
    llama_set_adapters_lora(context_, adapters, 1, scales);
    llama_log_set(
        [](ggml_log_level /*level*/, const char * /*text*/, void * user_data) {
            auto & self = *static_cast<Asking *>(user_data);
            if (!self.is_inside) {
                self.is_inside = true;
                Call(self.stream)->prefill(bytes("other " + std::to_string(self.n_calls++)));
                self.is_inside = false;
            }
        },
        &asking);
    const Call call(stream_);
    EXPECT_NE(call->generate(4, [](const auto &) { return true; }), Stop::none);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    EXPECT_GT(asking.n_calls, 0);
}

}  // namespace
}  // namespace token_trie::test
