# Installs BUILD into a folder, then moves it to PREFIX: an installation must not depend on where it was made.
file(REMOVE_RECURSE "${PREFIX}" "${PREFIX} before the move")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX} before the move"
                COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${PREFIX} before the move" "${PREFIX}")
