/* A driver's NVML as far as the library asks it: FAKE_GPUS holds "name:sm:uuid" for each GPU, with ; between them,
   FAKE_CUDA the driver's CUDA version. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu {
    char name[64], uuid[64];
    int sm;
};

static struct gpu gpus[8];
static unsigned present;

int nvmlInit_v2(void) {
    const char *text = getenv("FAKE_GPUS");
    present = 0;
    while (present < 8 && text &&
           sscanf(text, "%63[^:]:%d:%63[^;]", gpus[present].name, &gpus[present].sm, gpus[present].uuid) == 3) {
        ++present;
        text = strchr(text, ';');
        text = text ? text + 1 : NULL;
    }
    return getenv("FAKE_FAILURE") ? atoi(getenv("FAKE_FAILURE")) : 0;
}

int nvmlShutdown(void) {
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = present;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **unit) {
    *unit = &gpus[index];
    return 0;
}

/* Only whole names; the list of all has no MIG instances. */
int nvmlDeviceGetHandleByUUID(const char *uuid, struct gpu **unit) {
    static struct gpu instance = {"Part", "MIG-1", 90};
    *unit = &instance;
    return strcmp(uuid, instance.uuid) == 0 ? 0 : 6;
}

int nvmlDeviceGetUUID(struct gpu *unit, char *uuid, unsigned size) {
    snprintf(uuid, size, "%s", unit->uuid);
    return 0;
}

int nvmlDeviceGetName(struct gpu *unit, char *name, unsigned size) {
    snprintf(name, size, "%s", unit->name);
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *unit, int *major, int *minor) {
    *major = unit->sm / 10;
    *minor = unit->sm % 10;
    return 0;
}

int nvmlDeviceGetMemoryInfo(struct gpu *unit, unsigned long long memory[3]) {
    (void)unit;
    memory[0] = 1ull << 34;
    return 0;
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    snprintf(version, size, "470.1");
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = atoi(getenv("FAKE_CUDA"));
    return 0;
}
