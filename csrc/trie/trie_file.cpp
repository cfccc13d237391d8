#include "trie/trie_file.h"

#include "trie/compact_tree.h"
#include "trie/json.h"
#include "trie/non_copyable.h"
#include "trie/sha256.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

namespace [[gnu::visibility("default")]] token_trie {
namespace {

constexpr std::array<char, 8> kMagic = {'t', 'o', 'k', 'e', 'n', 't', 'r', 'i'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kByteOrder = 0x04030201;
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint32_t kFacts = CompactTree::n_sections;  // the part after the sections
constexpr std::uint32_t kParts = CompactTree::n_sections + 1;
constexpr std::array<const char *, kParts> kPartNames = {
    "edge tokens", "inner",      "last",         "member low", "member high", "ends",    "tail ends",
    "tail tokens", "order",      "name low",     "name high",  "names",       "row low", "row high",
    "inner hints", "last hints", "member hints", "tail hints", "facts"};

struct Part {
    std::uint64_t offset;
    std::uint64_t n_bytes;
    Sha256::Digest digest;
};

struct Header {
    std::array<char, 8> magic;
    std::uint32_t version;
    std::uint32_t byte_order;
    std::uint64_t n_file;
    CompactTree::Shape shape;
    std::array<Part, kParts> parts;
    Sha256::Digest digest;
};
static_assert(std::is_trivially_copyable_v<Header> && offsetof(Header, digest) + 32 == sizeof(Header));

std::uint64_t aligned(std::uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

Sha256::Digest digest_of(const void * data, std::size_t n) {
    Sha256 hash;
    hash.update(data, n);
    return hash.finish();
}

class Mapping : NonCopyable {
   public:
    explicit Mapping(const std::string & path) {
        const auto refuse = [&](const char * what) {
            throw Error(Status::argument, "file: ", quote(path, kMaxPathBytes), ": ", what);
        };
        if (path.find('\0') != std::string::npos) {
            refuse("holds a NUL character");
        }
        // A pipe that nobody writes to is not waited for.
        const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat facts{};
        if (file < 0 || fstat(file, &facts) != 0) {
            const int error = errno;
            if (file >= 0) {
                close(file);
            }
            refuse(std::strerror(error));
        }
        n_ = static_cast<std::uint64_t>(facts.st_size);
        if (S_ISREG(facts.st_mode) && n_ > 0) {
            data_ = mmap(nullptr, n_, PROT_READ, MAP_SHARED, file, 0);
        }
        const int error = errno;
        close(file);
        if (!S_ISREG(facts.st_mode)) {
            refuse("not a file");
        }
        if (data_ == MAP_FAILED) {
            data_ = nullptr;
            refuse(std::strerror(error));
        }
    }
    ~Mapping() {
        if (data_ != nullptr) {
            munmap(data_, n_);
        }
    }

    std::string_view bytes() const noexcept { return {static_cast<const char *>(data_), n_}; }

   private:
    void * data_ = nullptr;
    std::uint64_t n_ = 0;
};

// Throws Error (payload) where a file is not what it has to be.
template <typename... Parts>
void refuse_if(bool is_broken, const std::string & path, const Parts &... what) {
    if (is_broken) {
        throw Error(Status::payload, quote(path, kMaxPathBytes), ": ", what...);
    }
}

// A copy, checked: what it says of the file holds.
Header read_header(std::string_view bytes, const std::string & path) {
    Header header{};
    if (!bytes.empty()) {
        std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof header));
    }
    refuse_if(bytes.size() < kMagic.size() || header.magic != kMagic, path, "not a file of a trie");
    refuse_if(bytes.size() < sizeof header, path, "truncated: ", bytes.size(), " bytes");
    refuse_if(header.byte_order != kByteOrder, path, "written in another byte order");
    refuse_if(header.version != kVersion, path, "version ", header.version, " of the format, where ", kVersion,
              " is known; write it anew");
    refuse_if(header.digest != digest_of(&header, offsetof(Header, digest)), path, "header: damaged");
    refuse_if(header.n_file != bytes.size(), path, "truncated: ", bytes.size(), " bytes of ", header.n_file);
    for (std::uint32_t i = 0; i < kParts; ++i) {
        const Part & part = header.parts[i];
        refuse_if(part.offset % kAlignment != 0 || part.offset > bytes.size() ||
                      part.n_bytes > bytes.size() - part.offset ||
                      (i != kFacts && part.n_bytes % sizeof(std::uint64_t) != 0),
                  path, kPartNames[i], ": lies outside of the file");
    }
    return header;
}

// The part "facts": the vocabulary and aliases of leaves that are below n_leaves.
std::pair<std::string, std::vector<Alias>> read_facts(std::string_view text, std::uint64_t n_leaves) {
    try {
        const Json json = Json::parse(text);
        std::vector<Alias> aliases;
        for (const Json & alias : json.at("aliases")) {
            const Json & leaf = alias.at(1);
            throw_if(!leaf.is_number_unsigned() || leaf.get<std::uint64_t>() >= n_leaves, Status::payload,
                     "facts: damaged");
            aliases.push_back({alias.at(0).get<std::string>(), leaf.get<LeafId>()});
        }
        return {json.at("vocab").get<std::string>(), std::move(aliases)};
    } catch (const Json::exception &) {
        throw Error(Status::payload, "facts: damaged");
    }
}

}  // namespace

TrieImage::TrieImage(const std::shared_ptr<const Trie> & trie) {
    const std::shared_ptr<const CompactTree> compact = compacted(trie);
    throw_if(compact == nullptr, Status::limit, "a set of token ids from 4194304 on cannot be saved");
    const CompactTree & tree = *compact;
    trie_ = compact;
    Json facts = {{"vocab", tree.vocab()}, {"aliases", Json::array()}};
    for (const Alias & alias : tree.aliases()) {
        facts["aliases"].push_back({alias.name, alias.leaf});
    }
    std::vector<std::string_view> parts;
    for (const Words & words : tree.sections()) {
        parts.emplace_back(reinterpret_cast<const char *>(words.data), words.size * sizeof(std::uint64_t));
    }
    parts.push_back(owned_.emplace_back(facts.dump(-1, ' ', false, Json::error_handler_t::replace)));
    Header header{};
    header.magic = kMagic;
    header.version = kVersion;
    header.byte_order = kByteOrder;
    header.shape = tree.shape();
    std::uint64_t at = aligned(sizeof header);
    for (std::uint32_t i = 0; i < kParts; ++i) {
        header.parts[i] = {at, parts[i].size(), digest_of(parts[i].data(), parts[i].size())};
        at += aligned(parts[i].size());
    }
    header.n_file = at;
    header.digest = digest_of(&header, offsetof(Header, digest));
    pieces_.push_back(owned_.emplace_back(reinterpret_cast<const char *>(&header), sizeof header));
    const std::string & zeros = owned_.emplace_back(kAlignment, '\0');
    const auto pad = [&](std::uint64_t n) { pieces_.push_back(std::string_view(zeros).substr(0, aligned(n) - n)); };
    pad(sizeof header);
    for (const std::string_view part : parts) {
        pieces_.push_back(part);
        pad(part.size());
    }
}

std::shared_ptr<const Trie> open_trie_image(std::string_view bytes,
                                            const std::shared_ptr<const void> & owner,
                                            const std::string & name) {
    const Header header = read_header(bytes, name);
    CompactTree::Sections sections;
    for (std::uint32_t i = 0; i < CompactTree::n_sections; ++i) {
        const Part & part = header.parts[i];
        sections[i] = {reinterpret_cast<const std::uint64_t *>(bytes.data() + part.offset),
                       part.n_bytes / sizeof(std::uint64_t)};
    }
    const Part & part = header.parts[kFacts];
    try {
        auto [vocab, aliases] = read_facts(bytes.substr(part.offset, part.n_bytes), header.shape.n_members);
        return std::make_shared<const CompactTree>(header.shape, sections, owner, /* trusted = */ false,
                                                   std::move(vocab), std::move(aliases));
    } catch (const Error & error) {
        throw Error(error.status(), quote(name, kMaxPathBytes), ": ", error.what());
    }
}

void seal_trie_image(char * bytes, std::size_t n) {
    if (n >= sizeof(Header)) {
        const Sha256::Digest digest = digest_of(bytes, offsetof(Header, digest));
        std::memcpy(bytes + offsetof(Header, digest), digest.data(), digest.size());
    }
}

std::shared_ptr<const Trie> open_trie_file(const std::string & path) {
    const auto file = std::make_shared<const Mapping>(path);
    return open_trie_image(file->bytes(), file, path);
}

void verify_trie_file(const std::string & path) {
    const auto file = std::make_shared<const Mapping>(path);
    const Header header = read_header(file->bytes(), path);
    for (std::uint32_t i = 0; i < kParts; ++i) {
        const Part & part = header.parts[i];
        refuse_if(digest_of(file->bytes().data() + part.offset, part.n_bytes) != part.digest, path, kPartNames[i],
                  ": damaged");
    }
    open_trie_image(file->bytes(), file, path);
}

}  // namespace token_trie
