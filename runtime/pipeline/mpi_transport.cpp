// libheadwater-mpi.so: MPI behind a table of functions. It is the only file that knows MPI.
#include <mpi.h>

#include <cstdio>

#include "runtime/pipeline/transport.hpp"

namespace headwater::pipeline {
namespace {

char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";

void* send(const void* bytes, int size, int to, int tag) {
  auto* request = new MPI_Request;
  if (MPI_Isend(bytes, size, MPI_BYTE, to, tag, MPI_COMM_WORLD, request) == MPI_SUCCESS) return request;
  delete request;
  return nullptr;
}

void* find(int tag, int* from, int* size) {
  int found = 0;
  MPI_Status status;
  MPI_Message message = MPI_MESSAGE_NULL;
  if (MPI_Improbe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &found, &message, &status) != MPI_SUCCESS ||
      found == 0) {
    return nullptr;
  }
  *from = status.MPI_SOURCE;
  MPI_Get_count(&status, MPI_BYTE, size);
  return new MPI_Message(message);
}

void* receive(void* found, void* bytes, int size) {
  auto* message = static_cast<MPI_Message*>(found);
  auto* request = new MPI_Request;
  const int error = MPI_Imrecv(bytes, size, MPI_BYTE, message, request);
  delete message;
  if (error == MPI_SUCCESS) return request;
  delete request;
  return nullptr;
}

int done(void* pending) {
  auto* request = static_cast<MPI_Request*>(pending);
  int flag = 0;
  const int error = MPI_Test(request, &flag, MPI_STATUS_IGNORE);
  if (error == MPI_SUCCESS && flag == 0) return 0;
  delete request;
  return error == MPI_SUCCESS ? 1 : -1;
}

void abort(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

void finish() { MPI_Finalize(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) int headwater_start_transport(Transport* transport,
                                                                                char* error,
                                                                                std::size_t error_size) {
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    std::snprintf(error, error_size, "MPI does not start");
    return 1;
  }
  int length = 0;
  MPI_Get_library_version(library, &length);
  for (char* c = library; *c != '\0'; ++c) {
    if (*c == ',' || *c == '\n') *c = '\0';  // the rest is who built it and when
  }
  // One thread calls MPI, and it is not the one that computes.
  if (provided < MPI_THREAD_FUNNELED) {
    std::snprintf(error, error_size, "%s has no support of threads; allowed: MPI_THREAD_FUNNELED and above",
                  library);
    MPI_Finalize();
    return 1;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &transport->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &transport->size);
  transport->library = library;
  transport->send = send;
  transport->find = find;
  transport->receive = receive;
  transport->done = done;
  transport->abort = abort;
  transport->finish = finish;
  return 0;
}

}  // namespace headwater::pipeline
