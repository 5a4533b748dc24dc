/* A stand-in for NVIDIA's libnvidia-ml.so.1 and libcuda.so.1, for test_telemetry.py.

   What it answers stands in the file that FAKE_DRIVER names, read anew at every call. A line is
   "CARD KEY VALUE": "0 power_mw 250000". A value that begins with ! is the error code that NVML
   answers instead, "hang" has it never answer; a key that is missing is "not supported", and the
   key "all" stands for every key. "cuda ORDINAL UUID/PCI_BUS_ID" lines are the devices that CUDA
   shows. A card's number is NVML's.

   Compiled with OLD_DRIVER, it lacks the functions that drivers before 510 lack. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MOST_CARDS = 8 };

typedef char *Card; /* a handle: a place in this array */
static char handles[MOST_CARDS];

static int look_up(const char *card, const char *key, char *value) {
  char line[256], got_card[32], got_key[64], got[128];
  FILE *file = fopen(getenv("FAKE_DRIVER"), "r");
  int found = 0;
  while (file && !found && fgets(line, sizeof line, file))
    if (sscanf(line, "%31s %63s %127[^\n]", got_card, got_key, got) == 3)
      found = !strcmp(got_card, card) && !strcmp(got_key, key);
  if (file) fclose(file);
  if (found) strcpy(value, got);
  return found;
}

static int text(Card card, const char *key, char *value) {
  char number[32], lost[128];
  sprintf(number, "%d", (int)(card - handles));
  if (look_up(number, "all", lost)) return atoi(lost + 1);
  if (!look_up(number, key, value)) return NOT_SUPPORTED;
  while (!strcmp(value, "hang")) sleep(1);
  return value[0] == '!' ? atoi(value + 1) : OK;
}

static int figure(Card card, const char *key, unsigned *value) {
  char got[128];
  int error = text(card, key, got);
  if (!error) *value = strtoul(got, NULL, 0);
  return error;
}

static int large(Card card, const char *key, unsigned long long *value) {
  char got[128];
  int error = text(card, key, got);
  if (!error) *value = strtoull(got, NULL, 0);
  return error;
}

static int find(const char *key, const char *wanted, Card *card) {
  char got[128];
  for (int i = 0; i < MOST_CARDS; i++)
    if (!text(&handles[i], key, got) && !strcmp(got, wanted)) return *card = &handles[i], OK;
  return NOT_FOUND;
}

/* NVML */

int nvmlInitWithFlags(unsigned flags) {
  char error[128];
  return look_up("nvml", "init", error) ? atoi(error + 1) : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == 15 ? "GPU is lost" : "error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, Card *card) { return find("uuid", uuid, card); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Card *card) { return find("pci", id, card); }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Card part, Card *card) {
  unsigned whole;
  if (figure(part, "part_of", &whole)) return INVALID_ARGUMENT;
  return *card = &handles[whole], OK;
}
int nvmlDeviceGetName(Card card, char *name, unsigned length) { return text(card, "name", name); }

int nvmlDeviceGetUtilizationRates(Card card, unsigned rates[2]) {
  int error = figure(card, "utilization", &rates[0]);
  return error ? error : figure(card, "memory_utilization", &rates[1]);
}
int nvmlDeviceGetMemoryInfo(Card card, unsigned long long memory[3]) {
  int error = large(card, "memory_total", &memory[0]);
  return error ? error : large(card, "memory_used", &memory[2]);
}
int nvmlDeviceGetPowerUsage(Card card, unsigned *mw) { return figure(card, "power_mw", mw); }
int nvmlDeviceGetEnforcedPowerLimit(Card card, unsigned *mw) {
  return figure(card, "power_limit_mw", mw);
}
int nvmlDeviceGetClockInfo(Card card, int kind, unsigned *mhz) {
  return figure(card, kind == 1 ? "sm_clock" : "memory_clock", mhz);
}
int nvmlDeviceGetMaxClockInfo(Card card, int kind, unsigned *mhz) {
  return figure(card, kind == 1 ? "sm_clock_max" : "memory_clock_max", mhz);
}
int nvmlDeviceGetTemperature(Card card, int sensor, unsigned *celsius) {
  return sensor ? INVALID_ARGUMENT : figure(card, "temperature", celsius);
}
int nvmlDeviceGetTemperatureThreshold(Card card, int kind, unsigned *celsius) {
  return kind == 1 ? figure(card, "temperature_slowdown", celsius) : INVALID_ARGUMENT;
}
int nvmlDeviceGetViolationStatus(Card card, int policy, unsigned long long times[2]) {
  times[0] = 0;
  return large(card, policy == 0 ? "power_violation" : "thermal_violation", &times[1]);
}
int nvmlDeviceGetCurrPcieLinkGeneration(Card card, unsigned *n) { return figure(card, "gen", n); }
int nvmlDeviceGetMaxPcieLinkGeneration(Card card, unsigned *n) {
  return figure(card, "gen_max", n);
}
int nvmlDeviceGetCurrPcieLinkWidth(Card card, unsigned *n) { return figure(card, "width", n); }
int nvmlDeviceGetMaxPcieLinkWidth(Card card, unsigned *n) { return figure(card, "width_max", n); }
int nvmlDeviceGetPcieThroughput(Card card, int counter, unsigned *kb) {
  return figure(card, counter == 0 ? "tx_kb" : "rx_kb", kb);
}

/* "processes" is a list of PID:BYTES. */
struct Process { unsigned pid; unsigned long long bytes; unsigned instances[2]; };

static int processes(Card card, unsigned *count, struct Process *list) {
  char got[128], *next;
  unsigned room = *count;
  int error = text(card, "processes", got);
  if (error) return error;
  *count = 0;
  for (next = strtok(got, " "); next; next = strtok(NULL, " "), ++*count)
    if (*count < room) {
      list[*count].pid = strtoul(next, &next, 10);
      list[*count].bytes = strtoull(next + 1, NULL, 10);
    }
  return *count > room ? INSUFFICIENT_SIZE : OK;
}

#ifdef OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(Card card, unsigned long long *bits) {
  return large(card, "reasons", bits);
}
int nvmlDeviceGetComputeRunningProcesses_v2(Card card, unsigned *count, struct Process *list) {
  return processes(card, count, list);
}
#else
int nvmlDeviceGetCurrentClocksEventReasons(Card card, unsigned long long *bits) {
  return large(card, "reasons", bits);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Card card, unsigned *count, struct Process *list) {
  return processes(card, count, list);
}
#endif

/* CUDA, whose devices are its own list of UUID/PCI_BUS_ID */

static int cuda(int ordinal, char *value) {
  char number[32];
  sprintf(number, "%d", ordinal);
  return look_up("cuda", number, value);
}

int cuInit(unsigned flags) {
  char got[128];
  return cuda(0, got) ? 0 : 100; /* CUDA_ERROR_NO_DEVICE */
}
int cuDeviceGetCount(int *count) {
  char got[128];
  for (*count = 0; cuda(*count, got);) ++*count;
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetPCIBusId(char *id, int length, int device) {
  char got[128];
  if (!cuda(device, got)) return 101;
  return strcpy(id, strchr(got, '/') + 1), 0;
}
int cuDeviceGetUuid(unsigned char uuid[16], int device) {
  char got[128], *next = got;
  if (!cuda(device, got)) return 101;
  for (int i = 0; i < 16; i++) {
    while (*next == '-') next++;
    sscanf(next, "%2hhx", &uuid[i]);
    next += 2;
  }
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) { return cuDeviceGetUuid(uuid, device); }
