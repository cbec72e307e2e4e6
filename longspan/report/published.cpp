#include "longspan/report/published.h"

namespace longspan::report {
namespace {

constexpr std::string_view kListOps = "listops", kText = "imdb",
                           kMatching = "retrieval", kImage = "cifar10",
                           kPathfinder = "pathfinder";

constexpr Published kArena[] = {{"dense", kListOps, 36.37},
                                {"dense", kText, 64.27},
                                {"dense", kMatching, 57.46},
                                {"dense", kImage, 42.44},
                                {"dense", kPathfinder, 71.40},
                                {"local", kListOps, 15.82},
                                {"local", kText, 52.98},
                                {"local", kMatching, 53.39},
                                {"local", kImage, 41.46},
                                {"local", kPathfinder, 66.63},
                                {"sparse_fixed", kListOps, 17.07},
                                {"sparse_fixed", kText, 63.58},
                                {"sparse_fixed", kMatching, 59.59},
                                {"sparse_fixed", kImage, 44.24},
                                {"sparse_fixed", kPathfinder, 71.71},
                                {"longformer", kListOps, 35.63},
                                {"longformer", kText, 62.85},
                                {"longformer", kMatching, 56.89},
                                {"longformer", kImage, 42.22},
                                {"longformer", kPathfinder, 69.71},
                                {"linformer", kListOps, 35.70},
                                {"linformer", kText, 53.94},
                                {"linformer", kMatching, 52.27},
                                {"linformer", kImage, 38.56},
                                {"linformer", kPathfinder, 76.34},
                                {"reformer", kListOps, 37.27},
                                {"reformer", kText, 56.10},
                                {"reformer", kMatching, 53.40},
                                {"reformer", kImage, 38.07},
                                {"reformer", kPathfinder, 68.50},
                                {"sinkhorn", kListOps, 33.67},
                                {"sinkhorn", kText, 61.20},
                                {"sinkhorn", kMatching, 53.83},
                                {"sinkhorn", kImage, 41.23},
                                {"sinkhorn", kPathfinder, 67.45},
                                {"synthesizer", kListOps, 36.99},
                                {"synthesizer", kText, 61.68},
                                {"synthesizer", kMatching, 54.67},
                                {"synthesizer", kImage, 41.61},
                                {"synthesizer", kPathfinder, 69.45},
                                {"bigbird", kListOps, 36.05},
                                {"bigbird", kText, 64.02},
                                {"bigbird", kMatching, 59.29},
                                {"bigbird", kImage, 40.83},
                                {"bigbird", kPathfinder, 74.87},
                                {"linear", kListOps, 16.13},
                                {"linear", kText, 65.90},
                                {"linear", kMatching, 53.09},
                                {"linear", kImage, 42.34},
                                {"linear", kPathfinder, 75.30},
                                {"performer", kListOps, 18.01},
                                {"performer", kText, 65.40},
                                {"performer", kMatching, 53.82},
                                {"performer", kImage, 42.77},
                                {"performer", kPathfinder, 77.05}};

constexpr Published kDeep[] = {
    {"bigbird", kText, 62.7},         {"bigbird", kListOps, 36.7},
    {"bigbird", kMatching, 63.9},     {"linear", kText, 64.5},
    {"linear", kListOps, 37.1},       {"linear", kMatching, 64.2},
    {"linformer", kText, 56.3},       {"linformer", kListOps, 29.9},
    {"linformer", kMatching, 64.5},   {"local", kText, 55.5},
    {"local", kListOps, 36.8},        {"local", kMatching, 58.0},
    {"longformer", kText, 61.6},      {"longformer", kListOps, 36.8},
    {"longformer", kMatching, 61.2},  {"performer", kText, 64.4},
    {"performer", kListOps, 36.2},    {"performer", kMatching, 65.0},
    {"sinkhorn", kText, 62.3},        {"sinkhorn", kListOps, 19.4},
    {"sinkhorn", kMatching, 64.0},    {"sparse_fixed", kText, 61.2},
    {"sparse_fixed", kListOps, 37.0}, {"sparse_fixed", kMatching, 63.2},
    {"synthesizer", kText, 61.4},     {"synthesizer", kListOps, 36.5},
    {"synthesizer", kMatching, 71.1}, {"dense", kText, 62.6},
    {"dense", kListOps, 35.7},        {"dense", kMatching, 64.0},
    {"mixed", kText, 60.1},           {"mixed", kListOps, 37.1}};

constexpr Published kWide[] = {
    {"bigbird", kText, 62.4},         {"bigbird", kListOps, 37.3},
    {"bigbird", kMatching, 64.0},     {"linear", kText, 64.7},
    {"linear", kListOps, 37.4},       {"linear", kMatching, 63.9},
    {"linformer", kText, 52.6},       {"linformer", kListOps, 37.0},
    {"linformer", kMatching, 63.1},   {"local", kText, 57.0},
    {"local", kListOps, 37.7},        {"local", kMatching, 58.1},
    {"longformer", kText, 57.5},      {"longformer", kListOps, 37.7},
    {"longformer", kMatching, 58.1},  {"performer", kText, 64.8},
    {"performer", kListOps, 36.6},    {"performer", kMatching, 66.3},
    {"sinkhorn", kText, 61.6},        {"sinkhorn", kListOps, 21.7},
    {"sinkhorn", kMatching, 65.7},    {"sparse_fixed", kText, 62.9},
    {"sparse_fixed", kListOps, 36.9}, {"sparse_fixed", kMatching, 63.6},
    {"synthesizer", kText, 61.1},     {"synthesizer", kListOps, 37.3},
    {"synthesizer", kMatching, 72.3}, {"dense", kText, 62.4},
    {"dense", kListOps, 37.2},        {"dense", kMatching, 64.4},
    {"mixed", kText, 63.0},           {"mixed", kListOps, 38.0},
    {"mixed", kMatching, 66.9}};

constexpr Published kCached[] = {{"grc", kListOps, 37.40}};

constexpr Published kCombiner[] = {{"combiner_fixed", kListOps, 36.65},
                                   {"combiner_fixed", kText, 64.99},
                                   {"combiner_fixed", kMatching, 59.81},
                                   {"combiner_fixed", kImage, 41.67}};

constexpr Source kSources[] = {
    {"Long Range Arena", "Tay et al. 2020, arXiv:2011.04006, table 1", kArena},
    {"deep",
     "Brown et al. 2022, arXiv:2210.00640, table 2: 6 layers of 8 heads (matching: "
     "4 of 4)",
     kDeep},
    {"wide",
     "Brown et al. 2022, arXiv:2210.00640, table 2: 1 layer of 48 heads (matching: "
     "16)",
     kWide},
    {"GRC", "Zhang et al. 2023, arXiv:2312.12742: a cache beside dense attention",
     kCached},
    {"Combiner", "Ren et al. 2021, arXiv:2107.05768", kCombiner}};

}  // namespace

std::span<const Source> published() { return kSources; }

}  // namespace longspan::report
