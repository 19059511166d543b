// What can go wrong with NCCL: the right error, with the action named, within its deadline, and nothing left behind.
#include <fmt/format.h>

#include <cstdio>

#include "tests/catch.hpp"
#include "tests/support/device_ranks.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/comm/nccl/library.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/device/error.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using Catch::Contains;
using nccl::fake::FaultKind;
using std::chrono::milliseconds;
using test::expect;

namespace {

constexpr auto kSlack = milliseconds(500);

Tensor tensor_of(ProcessGroup& group, std::int64_t count) {
  const Tensor tensor = group.allocate({count}, DType::f32);
  tensor.zero();
  return tensor;
}

void check_threads(const test::DeviceRanks::Result& result) {
  CHECK(result.threads_after == result.threads_before);
  CHECK(result.leaks.communicators == 0);
  CHECK(result.left.empty());
}

struct Verb {
  const char* text;
  const char* communicator;
  std::function<void(ProcessGroup&)> call;
};

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all{
      {"number 2: all_reduce sum f32 x 8 (step 4, REDUCE h.1 action 1)", "reduce",
       [](auto& g) { g.all_reduce(tensor_of(g, 8)); }},
      {"number 2: reduce_scatter sum f32 x 8 (step 4", "reduce",
       [](auto& g) { g.reduce_scatter(tensor_of(g, 8), tensor_of(g, 8 * g.size())); }},
      {"number 2: reduce sum f32 x 8 root 0 (step 4", "reduce", [](auto& g) { g.reduce(tensor_of(g, 8)); }},
      {"number 2: all_gather f32 x 8 (step 4", "gather",
       [](auto& g) { g.all_gather(tensor_of(g, 8 * g.size()), tensor_of(g, 8)); }},
      {"number 2: broadcast f32 x 8 root 0 (step 4", "gather", [](auto& g) { g.broadcast(tensor_of(g, 8)); }},
      {"number 2: gather f32 x 8 root 0 (step 4", "gather",
       [](auto& g) { g.gather(g.rank() == 0 ? tensor_of(g, 8 * g.size()) : Tensor(), tensor_of(g, 8)); }},
      {"number 2: scatter f32 x 8 root 0 (step 4", "gather",
       [](auto& g) { g.scatter(tensor_of(g, 8), g.rank() == 0 ? tensor_of(g, 8 * g.size()) : Tensor()); }},
      {"number 2: all_to_all f32 x 16 (step 4", "gather",
       [](auto& g) { g.all_to_all(tensor_of(g, 16), tensor_of(g, 16)); }},
      {"number 2: barrier (step 4", "gather", [](auto& g) { g.barrier(); }},
  };
  return all;
}

// Rank 1 of 2 has the fault in operation 1 of a communicator; both wait for the device.
test::DeviceRanks::Result run_fault(FaultKind kind, const Verb& verb, milliseconds timeout) {
  test::DeviceRanks ranks;
  const bool in_gather = std::string(verb.communicator) == "gather";
  ranks.nccl.faults = {{kind, verb.communicator, 1, in_gather ? 1U : 0U}};
  ranks.options.timeout = timeout;
  return ranks.run(2, [&](ProcessGroup& group, Device& device) {
    group.barrier();
    group.set_action("step 4, REDUCE h.1", 1);
    verb.call(group);
    device.current().synchronize();
  });
}

}  // namespace

TEST_CASE("a remote error in any collective ends all ranks, named") {
  for (const Verb& verb : verbs()) {
    CAPTURE(verb.text);
    const auto result = run_fault(FaultKind::remote_error, verb, std::chrono::seconds(20));
    CHECK_THAT(result.texts[1], Contains("group \"world\": NCCL failed on rank 1 in ") && Contains(verb.text) &&
                                    Contains("remote process exited or there was a network error"));
    CHECK_THAT(result.texts[0], Contains(verb.text));
    CHECK(result.time < std::chrono::seconds(2));
    check_threads(result);
  }
}

TEST_CASE("an operation that never ends is an error at its deadline, on every rank, named") {
  for (const Verb& verb : verbs()) {
    CAPTURE(verb.text);
    const auto result = run_fault(FaultKind::never_ends, verb, milliseconds(400));
    // Rank 0 of a scatter and of a gather, and whoever only sends, may have done its part.
    int named = 0;
    for (const auto& text : result.texts) named += text.find(verb.text) != std::string::npos ? 1 : 0;
    CHECK(named == 2);
    CHECK_THAT(result.texts[1], Contains("waited 0.4 s in ") || Contains("rank 0 waited"));
    CHECK(result.time < milliseconds(400) + kSlack + milliseconds(200));
    check_threads(result);
  }
}

TEST_CASE("a rank that does not come is named with what it did last, and learns of it too") {
  test::DeviceRanks ranks;
  ranks.options.timeout = milliseconds(400);
  ranks.options.checked_calls = GENERATE(0, 100);
  const auto result = ranks.run(3, [](ProcessGroup& group, Device& device) {
    const Tensor tensor = tensor_of(group, 5);
    group.all_reduce(tensor);
    device.current().synchronize();
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1000));
    group.barrier();
  });
  const auto& found = result.texts[0].find("rank 0 waited") != std::string::npos ? result.texts[0] : result.texts[2];
  CHECK_THAT(found, Contains("waited 0.4 s in number 2: barrier; missing:") && Contains("rank 1"));
  for (const auto& text : result.texts) CHECK_THAT(text, Contains("number 2: barrier"));
  check_threads(result);
}

TEST_CASE("a message that nobody receives ends both ends, at its deadline") {
  test::DeviceRanks ranks;
  ranks.options.timeout = milliseconds(300);
  ranks.options.checked_calls = GENERATE(0, 100);
  const auto result = ranks.run(2, [](ProcessGroup& group, Device& device) {
    group.set_action("step 4, SEND h.1");
    if (group.rank() == 0) {
      group.send(tensor_of(group, 5), 1);
      device.current().synchronize();
    } else {
      std::this_thread::sleep_for(milliseconds(600));
      group.barrier();
    }
  });
  CHECK_THAT(result.texts[0], Contains("send to rank 1 (message 0: f32 x 5, step 4, SEND h.1)"));
  CHECK_THAT(result.texts[1], Contains("send to rank 1 (message 0"));
  check_threads(result);
}

TEST_CASE("a message whose transfer hangs or fails is named") {
  const FaultKind kind = GENERATE(FaultKind::remote_error, FaultKind::never_ends);
  test::DeviceRanks ranks;
  ranks.options.timeout = milliseconds(400);
  ranks.nccl.faults = {{kind, "0 to 1", 1, 0}};
  const auto result = ranks.run(2, [](ProcessGroup& group, Device& device) {
    const Tensor tensor = tensor_of(group, 5);
    group.rank() == 0 ? group.send(tensor, 1) : group.recv(tensor, 0);
    device.current().synchronize();
  });
  CHECK_THAT(result.texts[1], Contains("recv from rank 0 (message 0: f32 x 5)") || Contains("send to rank 1"));
  CHECK(result.time < milliseconds(400) + kSlack + milliseconds(200));
  check_threads(result);
}

TEST_CASE("set-up that hangs ends at its deadline, with the communicator named") {
  test::DeviceRanks ranks;
  ranks.options.timeout = milliseconds(400);
  ranks.nccl.faults = {{FaultKind::init_hangs, "world reduce", 1, 0}};
  const auto result = ranks.run(2, [](ProcessGroup& group, Device& device) {
    group.all_reduce(tensor_of(group, 5));
    device.current().synchronize();
  });
  CHECK_THAT(result.texts[1], Contains("rank 1 waited 0.4 s in set-up of communicator \"world reduce\" (2 ranks)") ||
                                  Contains("rank 0 waited"));
  CHECK(result.texts[0] != "");
  CHECK(result.time < milliseconds(400) + kSlack + milliseconds(200));
  check_threads(result);
}

TEST_CASE("a rank that never comes to set-up is named") {
  fake::install({.devices = 2});
  nccl::fake::install({});
  {
    const auto device = fake::create_fake_device(0);
    const auto start = Clock::now();
    CHECK_THROWS_WITH(
        create_process_group("nccl", std::make_shared<rendezvous::HashStore>(), 0, 2,
                             {.timeout = milliseconds(200), .device = device.get(), .nccl = &nccl::fake::nccl_api()}),
        Contains("group \"world\": rank 1 did not come within 0.2 s"));
    CHECK(Clock::now() - start < milliseconds(200) + kSlack);
  }
  fake::reset();
}

TEST_CASE("an abort that hangs does not hold the error back: the device is given up") {
  test::DeviceRanks ranks;
  ranks.options.timeout = milliseconds(300);
  ranks.options.abort_limit = milliseconds(300);
  ranks.nccl.faults = {{FaultKind::never_ends, "reduce", 1, 0}, {FaultKind::abort_hangs, "reduce", 1, 0}};
  const auto result = ranks.run(2, [](ProcessGroup& group, Device& device) {
    group.set_action("step 4, REDUCE h.1");
    group.all_reduce(tensor_of(group, 8));
    device.current().synchronize();
  });
  for (const auto& text : result.texts) CHECK_THAT(text, Contains("all_reduce sum f32 x 8 (step 4, REDUCE h.1)"));
  CHECK_THAT(result.texts[1], Contains("ncclCommAbort did not end within 0.3 s"));
  CHECK(result.time < milliseconds(300 + 300) + kSlack + milliseconds(200));
  nccl::fake::release_hangs();  // the one thread that was left
  const Deadline limit = Deadline::after(std::chrono::seconds(5));
  while (test::threads_of_this_process() != result.threads_before && !limit.passed())
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(test::threads_of_this_process() == result.threads_before);
}

TEST_CASE("an abort while ranks wait in different places ends them all with the first error") {
  test::DeviceRanks ranks;
  ranks.options.timeout = std::chrono::seconds(20);
  const auto result = ranks.run(3, [](ProcessGroup& group, Device& device) {
    const Tensor tensor = tensor_of(group, 8);
    group.set_action("step 9");
    if (group.rank() == 0) group.recv_async(tensor, 1).wait();  // the store, then the lane
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(200));
      throw std::runtime_error("an error of the model");
    }
    group.all_reduce(tensor);  // comparing
    device.current().synchronize();
  });
  CHECK(result.texts[1] == "an error of the model");
  for (const int rank : {0, 2}) {
    CHECK_THAT(result.texts[static_cast<std::size_t>(rank)],
               Contains("group \"world\": rank 1 left by an error of its own"));
  }
  CHECK(result.time < std::chrono::seconds(2));
  check_threads(result);
}

TEST_CASE("after an error every call throws it again, of splits too") {
  test::DeviceRanks ranks;
  ranks.nccl.faults = {{FaultKind::remote_error, "half reduce", 0, 0}};
  const auto result = ranks.run(2, [](ProcessGroup& group, Device& device) {
    const std::vector<int> both{0, 1};
    const auto half = group.split(both, "half");
    std::string first;
    try {
      half->all_reduce(tensor_of(group, 8));
      device.current().synchronize();
    } catch (const CommError& error) {
      first = error.what();
    }
    expect(first.find("number 1: all_reduce") != std::string::npos, "the collective in " + first);
    for (ProcessGroup* each : {half.get(), &group}) {
      try {
        each->barrier();
        throw std::runtime_error("no error");
      } catch (const CommError& error) {
        expect(error.what() == first, "the first error again");
      }
    }
  });
  for (const auto& text : result.texts) CHECK(text == "");
  check_threads(result);
}

TEST_CASE("NCCL that is too old is refused with both versions") {
  test::DeviceRanks ranks;
  ranks.nccl.version = 21703;
  const auto result = ranks.run(2, [](ProcessGroup&, Device&) {});
  for (const auto& text : result.texts) CHECK_THAT(text, Contains("NCCL is version 2.17.3, expected 2.18.1 or newer"));
  check_threads(result);
}

TEST_CASE("two ranks on one device are refused before set-up, with what to do") {
  test::DeviceRanks ranks;
  ranks.one_device = true;
  ranks.nccl.version = GENERATE(22809, 23003);
  ranks.nccl.faults = {{FaultKind::init_hangs}};
  const auto result = ranks.run(2, [](ProcessGroup&, Device&) {});
  for (const auto& text : result.texts) {
    CHECK_THAT(text, Contains("ranks 0 and 1 use the same device of host ") && Contains("--nproc-per-node=gpu"));
    CHECK_THAT(text, Contains(ranks.nccl.version == 22809 ? "NCCL 2.30.3 can share one, this is 2.28.9"
                                                          : "set NCCL_MULTI_RANK_GPU_ENABLE=1"));
  }
  CHECK(result.time < std::chrono::seconds(2));
  check_threads(result);
}

TEST_CASE("a machine without a device says so before anything of NCCL") {
  fake::install({.devices = 0});
  CHECK_THROWS_AS(fake::create_fake_device(0), DeviceError);
  fake::reset();
}

TEST_CASE("a library that is missing is named with where it was looked for") {
  ::setenv("DTRUN_NCCL_LIB", "/nonexistent/libnccl.so.2", 1);
  CHECK_THROWS_WITH(nccl::library(), Contains("/nonexistent/libnccl.so.2") && Contains("DTRUN_NCCL_LIB"));
  ::unsetenv("DTRUN_NCCL_LIB");
}

TEST_CASE("the real library, as far as it goes without a driver") {
  try {
    nccl::library();
  } catch (const DeviceError& error) {
    std::printf("skipped: %s\n", error.what());
    return;
  }
  const nccl::NcclLibrary& real = nccl::library();
  CHECK(nccl::check_version(real.api, real.path) >= nccl::kOldestVersion);
  nccl::UniqueId first{}, second{};
  CHECK(real.api.get_unique_id(&first) == nccl::success);
  CHECK(real.api.get_unique_id(&second) == nccl::success);
  CHECK(std::memcmp(&first, &second, sizeof first) != 0);
  CHECK(real.api.comm_split != nullptr);
  CHECK(std::string(real.api.get_error_string(nccl::remote_error)) ==
        std::string(nccl::fake::nccl_api().get_error_string(nccl::remote_error)));
}

TEST_CASE("kill -9 of a rank in mid all-reduce: the others get a remote error that names the collective") {
  const tests::TempDirectory meeting;
  test::RankProcesses processes(3, [&](ProcessGroup& shm) {
    fake::install({.devices = shm.size()});
    nccl::fake::install({});
    const auto device = fake::create_fake_device(shm.rank());
    MemoryAccount account;
    const auto store = std::make_shared<test::DirectoryStore>(meeting.path());
    const auto group = create_process_group("nccl", store, shm.rank(), shm.size(),
                                            {.timeout = std::chrono::seconds(20),
                                             .account = &account,
                                             .device = device.get(),
                                             .nccl = &nccl::fake::nccl_api()});
    const Tensor tensor = tensor_of(*group, 100'000);
    shm.barrier();
    if (shm.rank() == 0) std::ofstream(meeting.path() / "running") << "yes";
    for (;;) {
      group->all_reduce(tensor);
      device->current().synchronize();
    }
  });
  const Deadline limit = Deadline::after(std::chrono::seconds(20));
  while (!std::filesystem::exists(meeting.path() / "running") && !limit.passed())
    std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(50));
  processes.kill(1, SIGKILL);
  const auto killed = Clock::now();
  CHECK(processes.wait(1) == "(killed)");
  for (const int rank : {0, 2}) CHECK_THAT(processes.wait(rank), Contains("all_reduce sum f32 x 100000"));
  CHECK(Clock::now() - killed < std::chrono::seconds(2));
}

TEST_CASE("ranks as processes: sums, gathers, messages and a split") {
  const tests::TempDirectory meeting;
  test::RankProcesses processes(4, [&](ProcessGroup& shm) {
    fake::install({.devices = shm.size(), .seed = static_cast<std::uint64_t>(shm.rank()) + 1});
    nccl::fake::install({});
    {
      const auto device = fake::create_fake_device(shm.rank());
      MemoryAccount account;
      const auto store = std::make_shared<test::DirectoryStore>(meeting.path());
      const auto group = create_process_group("nccl", store, shm.rank(), shm.size(),
                                              {.timeout = std::chrono::seconds(20),
                                               .account = &account,
                                               .device = device.get(),
                                               .nccl = &nccl::fake::nccl_api()});
      const int me = group->rank(), n = group->size();
      const Tensor host = Tensor::empty({200'000}, DType::f32, *std::make_unique<Arena>(MemoryTag::work, account));
      for (float& value : host.span<float>()) value = static_cast<float>(me + 1);
      const Tensor tensor = group->allocate({200'000}, DType::f32), all = group->allocate({800'000}, DType::f32);
      tensor.copy_from(host);
      const std::vector<int> pair{me / 2 * 2, me / 2 * 2 + 1};
      const auto half = group->split(pair, "half");
      half->all_reduce(tensor);
      group->all_gather(all, tensor);
      expect(all.to_host().span<float>()[799'999] == 7 && all.to_host().span<float>()[0] == 3, "sums of both halves");
      const Work sent = group->send_async(tensor, (me + 1) % n);
      group->recv(all.narrow(0, 200'000), (me + n - 1) % n);
      sent.wait();
      expect(all.to_host().span<float>()[0] == (me == 1 || me == 0 ? (me == 0 ? 7 : 3) : (me == 2 ? 3 : 7)),
             "the message");
      group->barrier();
    }
    expect(fake::reset().empty(), "nothing left on the device");
    shm.barrier();
  });
  for (int rank = 0; rank < 4; ++rank) CHECK(processes.wait(rank) == "");
}
