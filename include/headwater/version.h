#ifndef HEADWATER_VERSION_H_
#define HEADWATER_VERSION_H_

/* Version of the library that this header belongs to (C11 and C++). Until 1.0 a new minor version may break programs in
 * C++; what C may rely on is HEADWATER_ABI_VERSION of headwater.h. */
#define HEADWATER_VERSION_MAJOR 0
#define HEADWATER_VERSION_MINOR 1
#define HEADWATER_VERSION_PATCH 0
#define HEADWATER_VERSION "0.1.0"

#endif /* HEADWATER_VERSION_H_ */
