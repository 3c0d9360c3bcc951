#ifndef HEADWATER_EXPORT_H_
#define HEADWATER_EXPORT_H_

/* Everything is compiled with hidden visibility; HEADWATER_API marks what libheadwater.so exports. C and C++.
 */
#if defined(__GNUC__)
#define HEADWATER_API __attribute__((visibility("default")))
#else
#define HEADWATER_API
#endif

#endif /* HEADWATER_EXPORT_H_ */
