// State on a device: saved and loaded through host memory.
#include "worker_runtime/device/device.hpp"
#include "tests/catch.hpp"
#include "tests/support/checkpoint_state.hpp"
#include "tests/support/device_ranks.hpp"

using namespace dtrun;
using namespace dtrun::test;
using namespace dtrun::runtime;

namespace {

// The same pieces with elements on the device.
std::vector<StatePiece> on_device(const std::vector<StatePiece>& pieces, Device& device, MemoryAccount& account) {
  Arena arena(MemoryTag::param, account, &device);
  auto moved = pieces;
  for (auto& piece : moved) {
    piece.tensor = Tensor::empty(piece.tensor.shape(), DType::f32, arena);
    piece.tensor.copy_from(piece.tensor.numel() == 0 ? piece.tensor
                                                     : pieces[static_cast<std::size_t>(&piece - moved.data())].tensor);
  }
  return moved;
}

}  // namespace

TEST_CASE("pieces on a device are saved as they were when save returned, and loaded there") {
  const tests::TempDirectory directory;
  const auto store = std::make_shared<rendezvous::HashStore>();
  const auto result = DeviceRanks{}.run(2, [&](ProcessGroup& group, Device& device) {
    MemoryAccount account;
    {
      auto here = cut_state(Cut::columns, group.rank(), 2);
      fill(here, 4);
      const auto pieces = on_device(here, device, account);
      CheckpointWriter writer({.directory = directory.path(), .rank = group.rank(), .world = 2, .store = store});
      writer.save({.step = 4}, pieces);
      for (const auto& piece : pieces) piece.tensor.zero();
      const auto outcomes = writer.wait();
      expect(outcomes.size() == 1 && outcomes[0].error.empty(), "a checkpoint: " + outcomes[0].error);
      const auto choice = choose_checkpoint(directory.path(), group);
      expect(choice.path && choice.meta.step == 4, "the checkpoint to be found");
      auto other = cut_state(Cut::anywhere, group.rank(), 2);
      const auto loaded = on_device(other, device, account);
      expect(load_checkpoint(*choice.path, loaded).bytes_read == bytes_of(loaded), "its bytes read");
      for (std::size_t i = 0; i < other.size(); ++i) other[i].tensor = loaded[i].tensor.to_host();
      expect_filled(other, 4);
    }
  });
  for (const auto& text : result.texts) CHECK(text.empty());
  for (const auto& text : result.races) CHECK(text.empty());
}
