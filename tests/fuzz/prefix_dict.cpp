#include "trie/prefix_dict.h"

#include "fuzz.h"
#include "payload_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>

// Configurations written from an input, whole or with a byte changed, against a second reading of the same text, which
// has the whole document before it and follows the lists by looking keys up as text.
namespace token_trie::fuzz {
namespace {

using Tokens = std::vector<Token>;

struct Expected {
    std::vector<Tokens> members;
    std::uint64_t n_ids_skipped = 0;
    std::uint64_t n_keys_unreached = 0;
};

std::string written(Token token) { return std::to_string(token); }

// Nullopt for what it refuses.
class Reading {
   public:
    std::optional<Expected> read(const Document & root) {
        return root.is_object() && read_settings(root) && read_lists() && follow(written(start_), {})
                   ? std::optional<Expected>(std::move(out_))
                   : std::nullopt;
    }

   private:
    static bool is_id(const Document & value) {
        return value.is_number_unsigned() && value.get<std::uint64_t>() <= INT32_MAX;
    }

    bool read_settings(const Document & root) {
        std::set<std::string> seen;
        for (auto at = root.begin(); at != root.end(); ++at) {
            const std::string & key = at.key();
            const bool is_token = key == "start_token_id" || key == "end_token_id";
            if ((is_token || key == "sep" || key == "prefix_dict") && !seen.insert(key).second) {
                return false;
            }
            if ((is_token && !is_id(*at)) || (key == "sep" && !at->is_string()) ||
                (key == "prefix_dict" && !at->is_object())) {
                return false;
            }
            if (is_token) {
                (key == "end_token_id" ? end_ : start_) = at->get<Token>();
            } else if (key == "sep") {
                sep_ = at->get<std::string>();
            } else if (key == "prefix_dict") {
                dict_ = &*at;
            }
        }
        return dict_ != nullptr && start_ != end_ && !sep_.empty() &&
               sep_.find_first_of("-0123456789") == std::string::npos;
    }

    // Whether a key is token ids with the separator between them, each as it is written.
    bool is_beginning(std::string key) const {
        key += sep_;
        for (std::size_t at = 0; at < key.size();) {
            const std::size_t end = key.find(sep_, at);
            const std::string id = key.substr(at, end - at);
            constexpr std::size_t max_digits = 10;
            if (end == std::string::npos || id.empty() || id.size() > max_digits ||
                id.find_first_not_of("0123456789") != std::string::npos || std::stoll(id) > INT32_MAX ||
                std::to_string(std::stoll(id)) != id) {
                return false;
            }
            at = end + sep_.size();
        }
        return true;
    }

    bool read_lists() {
        for (auto at = dict_->begin(); at != dict_->end(); ++at) {
            if (!at->is_array()) {
                return false;
            }
            std::set<Token> next;
            for (const Document & value : *at) {
                if (!value.is_number_integer()) {
                    return false;
                }
                if (is_id(value)) {
                    next.insert(value.get<Token>());
                } else {
                    ++out_.n_ids_skipped;
                }
            }
            if (!is_beginning(at.key())) {
                ++out_.n_keys_unreached;
            } else if (!lists_.emplace(at.key(), std::move(next)).second) {
                return false;
            }
        }
        out_.n_keys_unreached += lists_.size();
        return lists_.count(written(start_)) == 1;
    }

    bool follow(const std::string & key, const Tokens & path) {
        const auto found = lists_.find(key);
        const bool is_key = found != lists_.end();
        if (!is_key || found->second.empty() || found->second.count(end_) == 1) {
            if (path.empty()) {
                return false;
            }
            out_.members.push_back(path);
        }
        if (is_key) {
            --out_.n_keys_unreached;
            for (const Token token : found->second) {
                Tokens longer = path;
                longer.push_back(token);
                if (token != end_ && !follow(std::string(key).append(sep_).append(written(token)), longer)) {
                    return false;
                }
            }
        }
        return true;
    }

    const Document * dict_ = nullptr;
    Token start_ = 225;
    Token end_ = 2;
    std::string sep_ = "_";
    std::map<std::string, std::set<Token>> lists_;
    Expected out_;
};

// An integer beyond 64 bits is a number with a fraction to the document.
bool has_huge_number(const Document & value) {
    constexpr double beyond = 9.2e18;
    return value.is_number_float() ? std::fabs(value.get<double>()) > beyond
                                   : value.is_structured() && std::any_of(value.begin(), value.end(), has_huge_number);
}

constexpr std::array<const char *, 6> kSeps = {R"("_")", R"("|")", R"(", ")", R"("")", R"("0")", "null"};
constexpr std::array<const char *, 4> kBetween = {"_", "|", ", ", "__"};
constexpr std::array<const char *, 12> kIds = {"225",        "2",  "0",   "7",   "8",  "225",
                                               "2147483647", "-1", "1.5", "007", "[]", "2147483648"};

std::string list_of(Input & in) {
    std::string out = "[";
    for (std::uint32_t n = in.below(5); n > 0; --n) {
        out.append(in.one_in(16) ? in.one_of(kIds) : kIds[in.below(5)]).append(n > 1 ? "," : "");
    }
    return out.append("]");
}

std::string dict_of(Input & in) {
    const std::string between = in.one_in(4) ? in.one_of(kBetween) : "_";
    std::string out = "{";
    for (std::uint32_t n = in.below(8); n > 0; --n) {
        std::string key = "225";
        for (std::uint32_t length = in.below(4); length > 0; --length) {
            key.append(between).append(in.one_in(16) ? in.one_of(kIds) : kIds[in.below(5)]);
        }
        out.append("\"").append(key).append("\":").append(list_of(in)).append(n > 1 ? "," : "");
    }
    return out.append("}");
}

std::string configuration_of(Input & in) {
    std::string out = "{";
    const std::uint32_t n = in.below(4);
    const std::uint32_t at_dict = in.below(n + 1);
    for (std::uint32_t i = 0; i <= n; ++i) {
        out.append(i > 0 ? "," : "");
        if (i == at_dict) {
            out.append("\"prefix_dict\":").append(dict_of(in));
            continue;
        }
        switch (in.below(6)) {
            case 0: out.append("\"start_token_id\":").append(in.one_of(kIds)); break;
            case 1: out.append("\"end_token_id\":").append(in.one_of(kIds)); break;
            case 2: out.append(R"("other":{"sep":[1]})"); break;
            case 3: out.append("\"prefix_dict\":").append(in.one_in(2) ? dict_of(in) : "[]"); break;
            default: out.append("\"sep\":").append(in.one_in(3) ? in.one_of(kSeps) : kSeps[in.below(3)]); break;
        }
    }
    out.append("}");
    if (in.one_in(8)) {
        out[in.byte() % out.size()] = static_cast<char>(in.byte());
    }
    return out;
}

}  // namespace

void run(Input & in) {
    while (!in.empty()) {
        const std::string json = configuration_of(in);
        const Document document = Document::parse(json, nullptr, /* allow_exceptions = */ false);
        if (!document.is_discarded() && has_huge_number(document)) {
            continue;
        }
        const std::optional<Expected> expected = document.is_discarded() ? std::nullopt : Reading().read(document);
        std::istringstream stream(json);
        PrefixDict read;
        try {
            read = read_prefix_dict(stream);
        } catch (const Error & error) {
            require(error.status() == Status::payload, "a configuration is refused as a payload");
            require(!expected, "what the header describes is taken");
            continue;
        }
        require(expected.has_value(), "what the header does not describe is refused");
        require(read.members.size() == expected->members.size(), "as many members");
        std::vector<Tokens> sorted = expected->members;
        std::sort(sorted.begin(), sorted.end());
        for (std::size_t i = 0; i < sorted.size(); ++i) {
            const auto first = read.members.tokens.begin();
            require(std::equal(sorted[i].begin(), sorted[i].end(),
                               first + static_cast<std::ptrdiff_t>(read.members.offsets[i]),
                               first + static_cast<std::ptrdiff_t>(read.members.offsets[i + 1])),
                    "members, in ascending order");
        }
        require(read.n_ids_skipped == expected->n_ids_skipped, "ids passed over");
        require(read.n_keys_unreached == expected->n_keys_unreached, "keys that nothing leads to");
    }
}

}  // namespace token_trie::fuzz
