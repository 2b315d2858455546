// What a GPU kernel is predicted to take. Work says what a product asks of the device, and is counted in the kernel's
// file; Rates say how long the kernel needs for each of it. bench/rates.py fits the rates to measured times and writes
// rates.inc.
#pragma once

#include <string_view>

#include "kernel.hpp"

namespace pyblas {

struct Work {
    // Blocks on the multiprocessor that has the most: resident ones in each whole wave, then the last ones.
    double waves = 0, resident = 1, last = 0;

    // Of one block:
    double steps = 0;  // of k that it walks one after another
    double trips = 0;  // rounds of a thread through a loop of copies, where their number is not a constant
    double folds = 0;  // moves of its sums, or other pauses of the whole block
    double flops = 0;  // idle lanes included
    double copies = 0; // to shared memory, of as many floats as the layouts of A and B allow
    double narrow = 0; // copies of one float that are due to a length or leading dimension
    double bytes = 0;  // that its multiprocessor has to bring
    double single = 0; // share of its outputs that are stored one by one, or exchanged first, for C's leading dimension

    // Of the product:
    double blocks = 0;         // that the device has to start
    double read = 0;           // bytes of A and B, and of C where beta is not 0
    double written = 0;        // bytes of C
    double written_singly = 0; // those of them that are stored one by one
    double second_kernels = 0; // that add partial sums
    double partial_bytes = 0;  // of partial sums
    double pieces = 0;         // partial sums that are added one after another

    const char *row = nullptr; // whose kernel does this product, at that row's rates

    // That many blocks, spread over the multiprocessors.
    void spread(double count, double resident_blocks, const Device &device);
    // All of A, B and C.
    void move(const Problem &problem);
};

// Times are seconds on any device; the others are multiples of what the device needs at its peaks: of multiply-adds,
// one for each copy, and of bandwidth, a multiprocessor's equal share for a block's bytes.
struct Rates {
    double start, wave, step, trip, fold, single; // seconds
    double flop, copy, narrow, byte;              // of a block
    double block, crowd;                          // seconds for each block; and where all multiprocessors have one
    double read, written, written_singly;
    double second_kernel;       // seconds
    double partial_byte, piece; // seconds for a piece
};

// Of the row of that name; nullptr if it has none.
const Rates *rates_of(std::string_view row);

// Predicted seconds of a row on the device.
double predict(const Kernel &kernel, const Problem &problem, const Device &device);

double predict(const Work &work, const Rates &rates, const Device &device);

} // namespace pyblas
