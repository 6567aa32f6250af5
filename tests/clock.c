/* A wall clock that is off by the seconds in the file $CLOCK_OFFSET, for a program that
   is started with this library preloaded. The monotonic clock is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  char digits[32] = {0};
  const char *file = getenv("CLOCK_OFFSET");
  if (!file) return 0;
  int opened = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY, 0);
  if (opened < 0) return 0;
  long count = syscall(SYS_read, opened, digits, sizeof digits - 1);
  syscall(SYS_close, opened);
  return count > 0 ? atol(digits) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += offset();
  return failed;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval *value, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  value->tv_sec = now.tv_sec;
  value->tv_usec = now.tv_nsec / 1000;
  return 0;
}
