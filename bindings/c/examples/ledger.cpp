/* Example of terrane.hpp: a ledger in a store, then each state with a proof of one entry.
 *
 * usage: ledger NEW_FOLDER. `cargo xtask capi` compiles and runs it.
 */
#undef NDEBUG
#include <cassert>
#include <filesystem>
#include <iostream>

#include "terrane.hpp"

static void stores(const std::string &dir) {
    terrane::Store store(dir + "/store");
    terrane::Table accounts = store.table("accounts");
    terrane::Batch batch;
    batch.put(accounts, "alice", "100");
    batch.put_many(accounts, {"bob", "carol"}, {"7", std::string(100'000, 'c')});
    batch.remove(accounts, "dave");
    store.sync(store.write(batch)); /* durable from here on */
    assert(accounts.get("alice") == "100" && !accounts.get("dave"));
    assert(accounts.stats().updates == 4);

    terrane::Answers answers;
    accounts.get_many({"bob", "nobody", "carol"}, answers);
    assert(answers[0] == "7" && !answers[1] && answers[2]->size() == 100'000);
    size_t rows = 0;
    for (terrane::Cursor cursor = accounts.range("b"); cursor.next(); ++rows)
        std::cout << cursor.key() << ": " << cursor.value().size() << " bytes\n";
    assert(rows == 2);
    terrane::Cursor none = accounts.range("a", "");
    assert(!none.next());

    /* The version, the view and the snapshot stay; the transaction conflicts. */
    uint64_t version = store.retain();
    accounts.save_snapshot("monday");
    terrane::View before = accounts.view();
    terrane::Transaction payment = store.transaction();
    payment.put(accounts, "alice", std::to_string(std::stoi(*payment.get(accounts, "alice")) - 1));
    batch.clear();
    batch.put(accounts, "alice", "0");
    store.write(batch);
    try {
        payment.commit();
        assert(false);
    } catch (const terrane::Error &error) {
        assert(error.code() == TERRANE_CONFLICT);
    }
    assert(before.get("alice") == "100" && store.snapshot("monday").get("alice") == "100");
    terrane::Fork fork(before);
    fork.put("alice", "fork");
    assert(fork.view().get("alice") == "fork");
    assert(store.install("fork", fork).get("alice") == "fork");
    store.roll_back(version);
    store.release(version);
    assert(accounts.get("alice") == "100");

    terrane::CommittedTable ledger = store.committed_table("ledger");
    terrane::Root root = ledger.write({"alice", "bob"}, {"100", "7"});
    assert(terrane::verify_committed(root, "bob", ledger.prove("bob")) == "7");
    assert(!terrane::verify_committed(root, "dave", ledger.prove("dave")));
    try {
        terrane::verify_committed(root, "bob", ledger.prove("dave"));
        assert(false);
    } catch (const terrane::Error &error) {
        assert(error.code() == TERRANE_INVALID_PROOF);
    }
    store.close();
}

static void states(const std::string &dir) {
    terrane::Answers answers;
    terrane::Radix radix(dir + "/radix");
    {
        terrane::RadixTree tree = radix.tree("main");
        terrane::Root root = tree.commit(tree.empty_root(), {"alice", "bob"}, {"100", "7"});
        root = tree.commit(root, {}, {}, {"bob"});
        terrane::verify_radix(root, tree.prove(root, {"alice", "bob"}), {"alice", "bob"}, answers);
        assert(answers[0] == "100" && !answers[1]);
        tree.get_many(root, {"alice"}, answers);
        assert(answers.size() == 1 && answers[0] == "100");
    }
    radix.close();

    terrane::Context context(dir + "/context");
    {
        terrane::ContextTree tree = context.empty();
        tree.put_many({"data/alice"}, {"100"});
        terrane::Root commit = tree.commit(0, "author", "genesis");
        terrane::ContextTree again = context.checkout(commit);
        again.get_many({"data/alice"}, answers);
        assert(answers[0] == "100");
        terrane::verify_context(again.root(), again.prove({"data/alice"}), {"data/alice"}, answers);
        assert(answers[0] == "100");
    }
    context.close();

    terrane::EthereumState ethereum(dir + "/ethereum");
    terrane_mpt_account account = {};
    account.address[19] = 1;
    account.balance[31] = 100;
    ethereum.commit(0, {}, {1}, {account}, {});
    std::array<uint8_t, 20> address = {};
    address[19] = 1;
    assert(ethereum.prove(address).size() == 1);
    ethereum.close();

    terrane::Index index(dir + "/index");
    index.put_many({"a", "b"}, {"1", "2"});
    index.get_many({"b", "c"}, answers);
    assert(answers[0] == "2" && !answers[1]);
    index.flush(true);
    index.close();
}

int main(int argc, char **argv) {
    if (argc != 2) {
        std::cerr << "usage: ledger NEW_FOLDER\n";
        return 2;
    }
    std::filesystem::create_directory(argv[1]);
    stores(argv[1]);
    states(argv[1]);
    std::cout << "ledger: every check held\n";
    return 0;
}
