// EM routing of vector capsules, by the passes of em.cpp, except that votes stay in L2; a library of its own, for few
// need it.
#include "backward.h"
#include "forward.h"
#include "poses.h"

#include "exports.h"

TORCHCAPS_EM(torchcaps::Vectors, float, f32)
TORCHCAPS_EM(torchcaps::Vectors, double, f64)
