# Finds nvcc and the GPUs to build for. Sets
#   PYBLAS_HAVE_CUDA            whether GPU code is built
#   PYBLAS_BUILD_ARCHITECTURES  what it is built for: "80 90a 80-ptx"
#   PYBLAS_BUILD_CUDA_VERSION   13000, or 0

set(PYBLAS_HAVE_CUDA OFF)
set(PYBLAS_BUILD_ARCHITECTURES "")
set(PYBLAS_BUILD_CUDA_VERSION 0)

execute_process(
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/cuda_toolkit.py
            "--cuda=${PYBLAS_CUDA}" "--archs=${PYBLAS_CUDA_ARCHS}" "--output=${CMAKE_BINARY_DIR}/cuda_toolkit.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE reason ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${reason}")
endif()
include(${CMAKE_BINARY_DIR}/cuda_toolkit.cmake)

if(nvcc)
  set(CMAKE_CUDA_COMPILER "${nvcc}")
  set(CMAKE_CUDA_FLAGS_INIT "${nvcc_flags}")
  set(CMAKE_CUDA_ARCHITECTURES "${cuda_architectures}")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(PYBLAS_HAVE_CUDA ON)
    set(PYBLAS_BUILD_ARCHITECTURES "${architecture_names}")
    string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "\\1*1000+\\2*10" version "${CMAKE_CUDA_COMPILER_VERSION}")
    math(EXPR PYBLAS_BUILD_CUDA_VERSION "${version}")
    string(APPEND CMAKE_CUDA_FLAGS " ${nvcc_compression}")
    message(STATUS "GPU code: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${PYBLAS_BUILD_ARCHITECTURES}")
  elseif(cuda_required)
    message(FATAL_ERROR "${nvcc} cannot compile here (CMakeError.log and CMakeConfigureLog.yaml say why). "
        "CUDAHOSTCXX chooses another host compiler; PYBLAS_CUDA=off builds for the CPU only.")
  else()
    set(cuda_reason "${nvcc} cannot compile here (CMakeConfigureLog.yaml says why)")
  endif()
endif()

if(NOT PYBLAS_HAVE_CUDA)
  message(WARNING "\n  ==== CPU ONLY: this build has no GPU code ====\n  ${cuda_reason}\n")
endif()
