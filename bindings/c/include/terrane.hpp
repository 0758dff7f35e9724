/* Terrane for C++17: RAII over terrane.h, in this header alone.
 *
 * A call that fails throws terrane::Error, which has the code. Destructors free handles and drop
 * errors: close a store with close() to see them. Objects move and do not copy. Threads may share
 * what they may share in C. Bytes are std::string_view; keys, values and answers of a batch are Rows
 * and Answers, whose memory any number of calls reuses.
 */
#ifndef TERRANE_HPP
#define TERRANE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrane.h"

namespace terrane {

/* A failed call: its message, and its code. */
class Error : public std::runtime_error {
public:
    Error(terrane_code code, const char *message) : std::runtime_error(message), code_(code) {}
    terrane_code code() const noexcept { return code_; }

private:
    terrane_code code_;
};

/* Throws unless a call has succeeded. */
inline void check(terrane_code code) {
    if (code != TERRANE_OK) throw Error(code, terrane_error_message());
}

inline const uint8_t *bytes(std::string_view text) {
    return reinterpret_cast<const uint8_t *>(text.data());
}

/* Root of a state, or hash of a commit. */
using Root = std::array<uint8_t, 32>;

/* Byte strings in contiguous memory. */
class Rows {
public:
    Rows() : offsets_{0} {}
    Rows(std::initializer_list<std::string_view> rows) : Rows() {
        for (std::string_view row : rows) push(row);
    }

    void push(std::string_view row) {
        data_.append(row);
        offsets_.push_back(data_.size());
    }
    void clear() {
        data_.clear();
        offsets_.resize(1);
    }
    size_t size() const { return offsets_.size() - 1; }
    std::string_view operator[](size_t at) const {
        return std::string_view(data_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
    }
    const uint8_t *data() const { return bytes(data_); }
    const size_t *offsets() const { return offsets_.data(); }

private:
    friend Rows proof_nodes(const std::function<terrane_code(size_t, uint8_t *, size_t, size_t *,
                                                             size_t *)> &);
    std::string data_;
    std::vector<size_t> offsets_;
};

/* Values that a batch of lookups has found. */
class Answers {
public:
    size_t size() const { return found_.size(); }

    /* The value of a key, or nothing; it shares the memory of the answers. */
    std::optional<std::string_view> operator[](size_t at) const {
        if (found_[at] == 0) return std::nullopt;
        size_t from = offsets_[at];
        return std::string_view(values_).substr(from, offsets_[at + 1] - from);
    }

    /* Has `look` write answers to (values, capacity, offsets, found), with more memory as needed. */
    template <typename Look> void fill(size_t count, Look look) {
        offsets_.resize(count + 1);
        found_.resize(count);
        if (values_.empty()) values_.resize(64 * count);
        for (;;) {
            auto values = reinterpret_cast<uint8_t *>(values_.data());
            terrane_code code = look(values, values_.size(), offsets_.data(), found_.data());
            if (code != TERRANE_TOO_SMALL) return check(code);
            values_.resize(offsets_[count]);
        }
    }

private:
    std::string values_;
    std::vector<size_t> offsets_;
    std::vector<uint8_t> found_;
};

/* Has `write` write bytes to (out, capacity, length), with more memory as needed. */
template <typename Write> std::string buffer(Write write) {
    std::string out(1024, '\0');
    for (;;) {
        size_t length = 0;
        terrane_code code = write(reinterpret_cast<uint8_t *>(out.data()), out.size(), &length);
        if (code != TERRANE_TOO_SMALL) check(code);
        out.resize(length);
        if (code == TERRANE_OK) return out;
    }
}

/* Has `write` write the nodes of a proof to (most, bytes, capacity, offsets, count). */
inline Rows proof_nodes(const std::function<terrane_code(size_t, uint8_t *, size_t, size_t *,
                                                         size_t *)> &write) {
    Rows rows;
    rows.data_.resize(4096);
    rows.offsets_.resize(65);
    for (;;) {
        size_t count = 0, most = rows.offsets_.size() - 1;
        auto data = reinterpret_cast<uint8_t *>(rows.data_.data());
        terrane_code code = write(most, data, rows.data_.size(), rows.offsets_.data(), &count);
        if (code == TERRANE_TOO_SMALL && count > most) {
            rows.offsets_.resize(count + 1);
            continue;
        }
        if (code != TERRANE_TOO_SMALL) check(code);
        rows.data_.resize(rows.offsets_[count]);
        if (code != TERRANE_OK) continue;
        rows.offsets_.resize(count + 1);
        return rows;
    }
}

/* Deleters of handles. */
struct Free {
    void operator()(terrane_store *it) const { terrane_store_close(it); }
    void operator()(terrane_table *it) const { terrane_table_free(it); }
    void operator()(terrane_view *it) const { terrane_view_free(it); }
    void operator()(terrane_cursor *it) const { terrane_cursor_free(it); }
    void operator()(terrane_batch *it) const { terrane_batch_free(it); }
    void operator()(terrane_transaction *it) const { terrane_transaction_rollback(it); }
    void operator()(terrane_fork *it) const { terrane_fork_free(it); }
    void operator()(terrane_index *it) const { terrane_index_close(it); }
    void operator()(terrane_radix *it) const { terrane_radix_close(it); }
    void operator()(terrane_radix_tree *it) const { terrane_radix_tree_free(it); }
    void operator()(terrane_committed *it) const { terrane_committed_free(it); }
    void operator()(terrane_mpt *it) const { terrane_mpt_close(it); }
    void operator()(terrane_context *it) const { terrane_context_close(it); }
    void operator()(terrane_context_tree *it) const { terrane_context_tree_free(it); }
};

/* A handle and who frees it. Null after close() and after a move. */
template <typename T> class Handle {
public:
    /* The handle for functions of terrane.h, which refuse null. */
    T *get() const noexcept { return handle_.get(); }

protected:
    Handle() = default;
    template <typename Make> static std::unique_ptr<T, Free> made(Make make) {
        T *out = nullptr;
        check(make(&out));
        return std::unique_ptr<T, Free>(out);
    }
    explicit Handle(std::unique_ptr<T, Free> handle) : handle_(std::move(handle)) {}
    std::unique_ptr<T, Free> handle_;
};

/* A chunk-wise cursor: while (cursor.next()) use(cursor.key(), cursor.value()). */
class Cursor : public Handle<terrane_cursor> {
public:
    Cursor(const terrane_view *view, std::string_view from, std::optional<std::string_view> to)
        : Handle(made([&](terrane_cursor **out) {
              return terrane_cursor_new(view, bytes(from), from.size(), to ? end(*to) : nullptr,
                                        to ? to->size() : 0, out);
          })) {}

    /* Goes to the next entry; false at the end of the range. */
    bool next() {
        if (at_ + 1 < rows_) {
            ++at_;
            return true;
        }
        fill();
        return rows_ > 0;
    }
    std::string_view key() const { return row(keys_, key_offsets_); }
    std::string_view value() const { return row(values_, value_offsets_); }

private:
    static constexpr size_t most = 256;

    /* An empty end is not the same as none. */
    static const uint8_t *end(std::string_view to) {
        return to.data() ? bytes(to) : reinterpret_cast<const uint8_t *>("");
    }
    std::string_view row(const std::string &data, const std::vector<size_t> &offsets) const {
        return std::string_view(data).substr(offsets[at_], offsets[at_ + 1] - offsets[at_]);
    }
    void fill() {
        at_ = rows_ = 0;
        for (;;) {
            terrane_code code = terrane_cursor_next_chunk(
                get(), most, reinterpret_cast<uint8_t *>(keys_.data()), keys_.size(),
                key_offsets_.data(), reinterpret_cast<uint8_t *>(values_.data()), values_.size(),
                value_offsets_.data(), &rows_);
            if (code != TERRANE_TOO_SMALL) return check(code);
            /* The first entry alone does not fit. */
            if (keys_.size() < key_offsets_[1]) keys_.resize(key_offsets_[1]);
            if (values_.size() < value_offsets_[1]) values_.resize(value_offsets_[1]);
        }
    }

    std::string keys_ = std::string(8 << 10, '\0'), values_ = std::string(32 << 10, '\0');
    std::vector<size_t> key_offsets_ = std::vector<size_t>(most + 1);
    std::vector<size_t> value_offsets_ = std::vector<size_t>(most + 1);
    size_t rows_ = 0, at_ = 0;
};

class Fork;

/* A table as of one commit. */
class View : public Handle<terrane_view> {
public:
    explicit View(terrane_view *view) : Handle(std::unique_ptr<terrane_view, Free>(view)) {}

    void get_many(const Rows &keys, Answers &out) const {
        out.fill(keys.size(), [&](auto... to) {
            return terrane_view_get_many(get(), keys.size(), keys.data(), keys.offsets(), to...);
        });
    }
    std::optional<std::string> get(std::string_view key) const {
        Answers out;
        get_many(Rows{key}, out);
        return out[0] ? std::optional<std::string>(*out[0]) : std::nullopt;
    }
    Cursor range(std::string_view from = {}, std::optional<std::string_view> to = {}) const {
        return Cursor(get(), from, to);
    }
    using Handle::get;
};

/* A named table. */
class Table : public Handle<terrane_table> {
public:
    explicit Table(terrane_table *table) : Handle(std::unique_ptr<terrane_table, Free>(table)) {}

    View view() const {
        terrane_view *out = nullptr;
        check(terrane_table_view(get(), &out));
        return View(out);
    }
    void get_many(const Rows &keys, Answers &out) const {
        out.fill(keys.size(), [&](auto... to) {
            return terrane_table_get_many(get(), keys.size(), keys.data(), keys.offsets(), to...);
        });
    }
    std::optional<std::string> get(std::string_view key) const {
        Answers out;
        get_many(Rows{key}, out);
        return out[0] ? std::optional<std::string>(*out[0]) : std::nullopt;
    }
    Cursor range(std::string_view from = {}, std::optional<std::string_view> to = {}) const {
        return view().range(from, to);
    }
    void save_snapshot(std::string_view name, std::string_view label = {}) const {
        check(terrane_snapshot_save(get(), bytes(name), name.size(), bytes(label), label.size()));
    }
    terrane_table_stats stats() const {
        terrane_table_stats out;
        check(terrane_table_get_stats(get(), &out));
        return out;
    }
    using Handle::get;
};

/* Updates of any tables of one store. */
class Batch : public Handle<terrane_batch> {
public:
    Batch() : Handle(made([](terrane_batch **out) { return terrane_batch_new(out); })) {}

    void put(const Table &table, std::string_view key, std::string_view value) {
        check(terrane_batch_put(get(), table.get(), bytes(key), key.size(),
                                bytes(value), value.size()));
    }
    /* As many keys as values. */
    void put_many(const Table &table, const Rows &keys, const Rows &values) {
        if (keys.size() != values.size()) throw Error(TERRANE_BAD_INPUT, "keys without values");
        check(terrane_batch_put_many(get(), table.get(), keys.size(),
                                     keys.data(), keys.offsets(), values.data(), values.offsets()));
    }
    void remove(const Table &table, std::string_view key) {
        check(terrane_batch_delete(get(), table.get(), bytes(key),
                                   key.size()));
    }
    void clear() { check(terrane_batch_clear(get())); }
};

/* Reads of one moment, and writes; rolled back unless it is committed. */
class Transaction : public Handle<terrane_transaction> {
public:
    explicit Transaction(const terrane_store *store)
        : Handle(made([&](terrane_transaction **out) {
              return terrane_transaction_begin(store, out);
          })) {}

    std::optional<std::string> get(const Table &table, std::string_view key) const {
        Rows keys{key};
        Answers out;
        out.fill(1, [&](auto... to) {
            return terrane_transaction_get_many(handle_.get(), table.get(), 1,
                                                keys.data(), keys.offsets(), to...);
        });
        return out[0] ? std::optional<std::string>(*out[0]) : std::nullopt;
    }
    void put(const Table &table, std::string_view key, std::string_view value) {
        Rows keys{key}, values{value};
        check(terrane_transaction_put_many(handle_.get(), table.get(), 1,
                                           keys.data(), keys.offsets(), values.data(),
                                           values.offsets()));
    }
    void remove(const Table &table, std::string_view key) {
        Rows keys{key};
        check(terrane_transaction_delete_many(handle_.get(), table.get(), 1,
                                              keys.data(), keys.offsets()));
    }
    /* Throws TERRANE_CONFLICT if another commit has changed what was read. */
    uint64_t commit() {
        uint64_t number = 0;
        check(terrane_transaction_commit(handle_.release(), &number));
        return number;
    }
};

/* A fork of a table, which goes its own way. */
class Fork : public Handle<terrane_fork> {
public:
    explicit Fork(const View &view)
        : Handle(made([&](terrane_fork **out) {
              return terrane_view_fork(view.get(), out);
          })) {}

    void put(std::string_view key, std::string_view value) {
        Rows keys{key}, values{value};
        check(terrane_fork_put_many(get(), 1, keys.data(), keys.offsets(), values.data(),
                                    values.offsets()));
    }
    View view() const {
        terrane_view *out = nullptr;
        check(terrane_fork_view(get(), &out));
        return View(out);
    }
};

/* A table of a store with a root over its entries. */
class CommittedTable : public Handle<terrane_committed> {
public:
    CommittedTable(const terrane_store *store, std::string_view name)
        : Handle(made([&](terrane_committed **out) {
              return terrane_committed_open(store, bytes(name), name.size(), out);
          })) {}

    Root root() const {
        Root root;
        check(terrane_committed_root(get(), root.data()));
        return root;
    }
    /* Sets values and deletes keys in one commit and gives the new root. */
    Root write(const Rows &keys, const Rows &values, const Rows &deletes = {}) {
        if (keys.size() != values.size()) throw Error(TERRANE_BAD_INPUT, "keys without values");
        Root root;
        check(terrane_committed_write(get(), keys.size(), keys.data(), keys.offsets(), values.data(),
                                      values.offsets(), deletes.size(), deletes.data(),
                                      deletes.offsets(), root.data()));
        return root;
    }
    /* Nodes for verify_committed. */
    Rows prove(std::string_view key) const {
        return proof_nodes([&](auto... out) {
            return terrane_committed_prove(get(), bytes(key), key.size(), out...);
        });
    }
};

/* An open store. */
class Store : public Handle<terrane_store> {
public:
    explicit Store(std::string_view dir, terrane_options options = creating())
        : Handle(made([&](terrane_store **out) {
              return terrane_store_open(bytes(dir), dir.size(), &options, out);
          })) {}

    /* The default options, which make a missing directory besides. */
    static terrane_options creating() {
        terrane_options options = terrane_options_default();
        options.create_dir = true;
        return options;
    }

    /* Closes in good order and throws if that fails. */
    void close() { check(terrane_store_close(handle_.release())); }

    Table table(std::string_view name, bool create = true) const {
        terrane_table *out = nullptr;
        check(terrane_table_open(get(), bytes(name), name.size(), create, &out));
        return Table(out);
    }
    uint64_t write(const Batch &batch) {
        uint64_t commit = 0;
        check(terrane_store_write(get(), batch.get(), &commit));
        return commit;
    }
    /* Waits until a commit survives a loss of power. */
    void sync(uint64_t commit) { check(terrane_store_sync_to(get(), commit)); }
    Transaction transaction() const { return Transaction(get()); }
    CommittedTable committed_table(std::string_view name) { return CommittedTable(get(), name); }
    View snapshot(std::string_view name, std::string_view label = {}) const {
        terrane_view *out = nullptr;
        check(terrane_snapshot_open(get(), bytes(name), name.size(), bytes(label), label.size(),
                                    &out));
        return View(out);
    }
    uint64_t retain() {
        uint64_t number = 0;
        check(terrane_version_retain(get(), nullptr, 0, &number));
        return number;
    }
    void release(uint64_t version) { check(terrane_version_release(get(), version)); }
    uint64_t roll_back(uint64_t version) {
        uint64_t commit = 0;
        check(terrane_store_roll_back(get(), version, &commit));
        return commit;
    }
    Table install(std::string_view name, const Fork &fork) {
        terrane_table *out = nullptr;
        check(terrane_store_install(get(), bytes(name), name.size(), fork.get(), &out));
        return Table(out);
    }
};

/* A B+tree index. */
class Index : public Handle<terrane_index> {
public:
    explicit Index(std::string_view dir, size_t memory_bytes = 0)
        : Handle(made([&](terrane_index **out) {
              return terrane_index_open(bytes(dir), dir.size(), memory_bytes, out);
          })) {}

    void close() { check(terrane_index_close(handle_.release())); }
    void put_many(const Rows &keys, const Rows &values) {
        if (keys.size() != values.size()) throw Error(TERRANE_BAD_INPUT, "keys without values");
        check(terrane_index_put_many(get(), keys.size(), keys.data(), keys.offsets(), values.data(),
                                     values.offsets()));
    }
    void get_many(const Rows &keys, Answers &out) const {
        out.fill(keys.size(), [&](auto... to) {
            return terrane_index_get_many(get(), keys.size(), keys.data(), keys.offsets(), to...);
        });
    }
    void flush(bool sync) { check(terrane_index_flush(get(), sync)); }
};

/* A named tree of a radix state. */
class RadixTree : public Handle<terrane_radix_tree> {
public:
    RadixTree(const terrane_radix *state, std::string_view name)
        : Handle(made([&](terrane_radix_tree **out) {
              return terrane_radix_tree_open(state, bytes(name), name.size(), out);
          })) {}

    static Root empty_root() {
        Root root;
        check(terrane_radix_empty_root(root.data()));
        return root;
    }
    Root commit(const Root &parent, const Rows &addresses, const Rows &values,
                const Rows &deletes = {}) {
        if (addresses.size() != values.size())
            throw Error(TERRANE_BAD_INPUT, "addresses without values");
        Root root;
        check(terrane_radix_commit(get(), parent.data(), addresses.size(), addresses.data(),
                                   addresses.offsets(), values.data(), values.offsets(),
                                   deletes.size(), deletes.data(), deletes.offsets(), root.data()));
        return root;
    }
    void get_many(const Root &root, const Rows &addresses, Answers &out) const {
        out.fill(addresses.size(), [&](auto... to) {
            return terrane_radix_get_many(get(), root.data(), addresses.size(), addresses.data(),
                                          addresses.offsets(), to...);
        });
    }
    /* A proof for verify_radix. */
    std::string prove(const Root &root, const Rows &addresses, bool compact = true) const {
        return buffer([&](auto... out) {
            return terrane_radix_prove(get(), root.data(), addresses.size(), addresses.data(),
                                       addresses.offsets(), compact, out...);
        });
    }
};

/* The radix state of a directory. */
class Radix : public Handle<terrane_radix> {
public:
    explicit Radix(std::string_view dir, terrane_durability durability = TERRANE_GROUP)
        : Handle(made([&](terrane_radix **out) {
              return terrane_radix_open(bytes(dir), dir.size(), durability, out);
          })) {}

    RadixTree tree(std::string_view name) const { return RadixTree(get(), name); }
    void close() { check(terrane_radix_close(handle_.release())); }
};

/* A working tree of a context store. */
class ContextTree : public Handle<terrane_context_tree> {
public:
    ContextTree(const terrane_context *store, const Root *commit)
        : Handle(made([&](terrane_context_tree **out) {
              return terrane_context_checkout(store, commit ? commit->data() : nullptr, out);
          })),
          store_(store) {}

    void put_many(const Rows &paths, const Rows &values) {
        if (paths.size() != values.size()) throw Error(TERRANE_BAD_INPUT, "paths without values");
        check(terrane_context_put_many(get(), paths.size(), paths.data(), paths.offsets(),
                                       values.data(), values.offsets()));
    }
    void get_many(const Rows &paths, Answers &out) const {
        out.fill(paths.size(), [&](auto... to) {
            return terrane_context_get_many(get(), paths.size(), paths.data(), paths.offsets(),
                                            to...);
        });
    }
    Root root() const {
        Root root;
        check(terrane_context_root(get(), root.data()));
        return root;
    }
    Root commit(int64_t date, std::string_view author, std::string_view message) {
        Root commit;
        check(terrane_context_commit(store_, get(), date, bytes(author), author.size(),
                                     bytes(message), message.size(), commit.data()));
        return commit;
    }
    /* A proof for verify_context. */
    std::string prove(const Rows &paths) const {
        return buffer([&](auto... out) {
            return terrane_context_prove(get(), paths.size(), paths.data(), paths.offsets(), out...);
        });
    }

private:
    const terrane_context *store_;
};

/* A context store. Its trees end before it. */
class Context : public Handle<terrane_context> {
public:
    explicit Context(std::string_view dir, terrane_durability durability = TERRANE_GROUP)
        : Handle(made([&](terrane_context **out) {
              return terrane_context_open(bytes(dir), dir.size(), durability, out);
          })) {}

    ContextTree checkout(const Root &commit) const { return ContextTree(get(), &commit); }
    ContextTree empty() const { return ContextTree(get(), nullptr); }
    void close() { check(terrane_context_close(handle_.release())); }
};

/* The state of an Ethereum chain. */
class EthereumState : public Handle<terrane_mpt> {
public:
    explicit EthereumState(std::string_view dir, terrane_durability durability = TERRANE_GROUP,
                           bool history = false)
        : Handle(made([&](terrane_mpt **out) {
              return terrane_mpt_open(bytes(dir), dir.size(), durability, history, out);
          })) {}

    Root commit(uint64_t height, const Root &parent, const Root &block,
                const std::vector<terrane_mpt_account> &accounts,
                const std::vector<terrane_mpt_slot> &slots, const Rows &codes = {}) {
        Root root;
        check(terrane_mpt_commit(get(), height, parent.data(), block.data(), accounts.size(),
                                 accounts.data(), slots.size(), slots.data(), codes.size(),
                                 codes.data(), codes.offsets(), root.data()));
        return root;
    }
    /* Nodes for verify_mpt; of a slot, if there is one. */
    Rows prove(const std::array<uint8_t, 20> &address, const Root *slot = nullptr) const {
        return proof_nodes([&](auto... out) {
            return terrane_mpt_prove(get(), address.data(), slot ? slot->data() : nullptr, out...);
        });
    }
    void close() { check(terrane_mpt_close(handle_.release())); }
};

/* Verifiers: they throw TERRANE_INVALID_PROOF. */

inline void verify_radix(const Root &root, std::string_view proof, const Rows &addresses,
                         Answers &out) {
    out.fill(addresses.size(), [&](auto... to) {
        return terrane_radix_verify(root.data(), root.size(), bytes(proof), proof.size(),
                                    addresses.size(), addresses.data(), addresses.offsets(), to...);
    });
}

inline void verify_context(const Root &root, std::string_view proof, const Rows &paths,
                           Answers &out) {
    out.fill(paths.size(), [&](auto... to) {
        return terrane_context_verify(root.data(), bytes(proof), proof.size(), paths.size(),
                                      paths.data(), paths.offsets(), to...);
    });
}

inline std::optional<std::string> verify_committed(const Root &root, std::string_view key,
                                                   const Rows &nodes) {
    Answers out;
    out.fill(1, [&](auto... to) {
        return terrane_committed_verify(root.data(), bytes(key), key.size(), nodes.size(),
                                        nodes.data(), nodes.offsets(), to...);
    });
    return out[0] ? std::optional<std::string>(*out[0]) : std::nullopt;
}

inline std::optional<std::string> verify_mpt(const Root &root, std::string_view key,
                                             const Rows &nodes) {
    Answers out;
    out.fill(1, [&](auto... to) {
        return terrane_mpt_verify(root.data(), bytes(key), key.size(), nodes.size(), nodes.data(),
                                  nodes.offsets(), to...);
    });
    return out[0] ? std::optional<std::string>(*out[0]) : std::nullopt;
}

} // namespace terrane

#endif
