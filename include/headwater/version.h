#ifndef HEADWATER_VERSION_H_
#define HEADWATER_VERSION_H_

/* Version of the library that this header belongs to (C11 and C++). The three numbers stand here and nowhere else; the
 * build reads them. Until 1.0 a new minor version may break programs in C++; what C may rely on is HEADWATER_ABI_VERSION
 * of headwater.h. */
#define HEADWATER_VERSION_MAJOR 0
#define HEADWATER_VERSION_MINOR 1
#define HEADWATER_VERSION_PATCH 0
/* For #if: 103 is 0.1.3. */
#define HEADWATER_VERSION_NUMBER \
  (HEADWATER_VERSION_MAJOR * 10000 + HEADWATER_VERSION_MINOR * 100 + HEADWATER_VERSION_PATCH)
#define HEADWATER_VERSION \
  HEADWATER_VERSION_JOIN(HEADWATER_VERSION_MAJOR, HEADWATER_VERSION_MINOR, HEADWATER_VERSION_PATCH)
#define HEADWATER_VERSION_JOIN(major, minor, patch) HEADWATER_VERSION_TEXT(major, minor, patch)
#define HEADWATER_VERSION_TEXT(major, minor, patch) #major "." #minor "." #patch

#endif /* HEADWATER_VERSION_H_ */
