// EM routing between matrix capsules without ever storing the votes: forward and exact backward.
//
// A lane of a vector register is a type of parent: a vote of L types is 16 registers, and nothing has to be summed
// over lanes but a child's softmax. The walk is by child: all its votes are made once, for all parents that see it,
// stay in L2 for the E-step's softmax, and are added to the parents' sums (the M-step) in the same visit. So one pass
// over the votes is one E-step and one M-step, or one iteration of the backward pass, and nothing of the votes' size
// is written. An image is one thread's; results do not depend on the number of threads.
#include "backward.h"
#include "forward.h"
#include "poses.h"

#include "exports.h"

TORCHCAPS_EM(torchcaps::Matrices, float, f32)
TORCHCAPS_EM(torchcaps::Matrices, double, f64)
